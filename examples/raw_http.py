"""No SDK and no decorators: hints for SGLang's own /generate, put into the body by hand.

Usage: python examples/raw_http.py [http://localhost:30000]
"""

import sys

import httpx

import kvflow

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
kvflow.configure(url=URL)  # who hears, beside the requests themselves, when steps and workflows end

with httpx.Client(base_url=URL, timeout=60) as client, kvflow.workflow("translate"):
    for agent, prompt in (("translator", "Translate: guten Morgen"), ("proofreader", "Proofread: god morning")):
        with kvflow.step(agent):
            body = {"text": prompt, "sampling_params": {"max_new_tokens": 8}}
            print(agent, client.post("/generate", json=kvflow.extra_body(body)).json()["text"])
