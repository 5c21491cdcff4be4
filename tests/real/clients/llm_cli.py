"""The `llm` command: a chat, a stream, a schema, a tool."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

url, model, tools_url, _ = sys.argv[1:]
CITIES = ["Paris", "Lyon"]
SCHEMA = {"type": "object", "properties": {"name": {"enum": CITIES}}, "required": ["name"]}
TOOL = 'def weather(city: str) -> str:\n    "Of a city."\n    return "rain"\n'
MODELS = f"""
- {{model_id: small, model_name: {model}, api_base: {url}, supports_schema: true}}
- {{model_id: said, model_name: said, api_base: {tools_url}, supports_tools: true}}
"""


def llm(*words: str) -> str:
    command = [sys.executable, "-m", "llm", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(MODELS)
    os.environ |= {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
    greedy = ("-m", "small", "-o", "temperature", "0", "-o", "max_tokens", "40")
    asked = "What is the capital of France? Answer in one sentence."
    text = llm(*greedy, asked)
    assert "Paris" in text and llm(*greedy, "--no-stream", asked) == text
    assert llm(*greedy, "-c", "And of Spain?")
    assert json.loads(llm(*greedy, "--schema", json.dumps(SCHEMA), "A city?"))["name"] in CITIES
    assert llm("-m", "said", "--functions", TOOL, "How is it in Zürich?").endswith("It rains.\n")
