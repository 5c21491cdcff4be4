"""What pyproject.toml cannot say: kernels for CPUs, once for each set of instructions. Without a
compiler the package is built without them. They are not linked to OpenMP: PyTorch has loaded its
own by then, and the threads of two would wait for each other.
"""

import platform

from setuptools import Extension, setup

X86 = {
    "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16"],
    "avx512": ["-march=x86-64-v4"],
    "avx2": ["-march=x86-64-v3"],
}
BUILDS = X86 if platform.machine() in ("x86_64", "AMD64") else {"portable": []}

setup(
    ext_modules=[
        Extension(
            f"engine.cpu._{name}",
            ["engine/cpu/linear.cpp", "engine/cpu/attention.cpp"],
            depends=["engine/cpu/vectors.h"],
            extra_compile_args=["-std=c++17", "-O3", "-ffp-contract=fast", "-fopenmp", *flags],
            language="c++",
            optional=True,
        )
        for name, flags in BUILDS.items()
    ]
)
