"""GuideLLM: its benchmark of chats and of completions, in which no request may fail."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

url, model, _, tokenizer = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    for path in ("/v1/chat/completions", "/v1/completions"):
        file = Path(folder, path.replace("/", "-") + ".json")
        backend = f"target={url.removesuffix('/v1')},model={model},request_format={path}"
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console-interactive"]
        command += ["--backend", f"kind=openai_http,{backend}", "--profile", "kind=synchronous"]
        command += ["--constraint", "kind=max_requests,count=3"]
        command += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
        command += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"]
        command += ["--output", f"kind=json,path={file}"]
        subprocess.run(command, check=True)
        (found,) = json.loads(file.read_text())["benchmarks"]
        assert len(found["requests"]["successful"]) == 3 and not found["requests"]["errored"]
