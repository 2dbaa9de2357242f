"""Print `custard/lab/keywords.py` anew, after a method's settings or the options of `custard.learn` have changed.

python docs/scripts/write_keywords.py > /tmp/keywords.py && mv /tmp/keywords.py src/custard/lab/keywords.py
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

from custard.lab import keywords
from custard.lab.learn import learn
from custard.lab.methods import METHODS, method

NOT_OPTIONS = ("env", "method", "seeds", "settings")


def options() -> dict[str, str]:
    """Return the options of `learn` with their types as written."""
    parameters = inspect.signature(learn).parameters
    kinds = {name: str(entry.annotation).replace("'", '"') for name, entry in parameters.items()}
    return {name: kind for name, kind in kinds.items() if name not in NOT_OPTIONS}


def settings() -> dict[str, str]:
    """Return the settings of all methods with their types, joined where methods differ."""
    kinds: dict[str, list[str]] = {}
    for name in METHODS:
        module = method(name)[1]
        for form in (module.Settings, *getattr(module, "SETTINGS", {}).values()):
            for field in dataclasses.fields(form):
                for kind in str(field.type).split(" | "):
                    kinds.setdefault(field.name, [])
                    if kind not in kinds[field.name]:
                        kinds[field.name].append(kind)
    joined = {name: "Any" if "Any" in parts else " | ".join(_none_last(parts)) for name, parts in kinds.items()}
    return {name: kind for name, kind in sorted(joined.items()) if name not in options()}


def _none_last(parts: list[str]) -> list[str]:
    return [*(part for part in parts if part != "None"), *(["None"] if "None" in parts else [])]


def text() -> str:
    """Return the whole file."""
    head = Path(keywords.__file__).read_text().partition("\nclass ")[0].rstrip()
    parts = [head, ""]
    for name, about, fields in (
        ("LearnOptions", "What every method takes.", options()),
        ("MethodSettings", "The settings of all methods; each method reads its own.", settings()),
    ):
        parts += ["", f"class {name}(TypedDict, total=False):", f'    """{about}"""', ""]
        parts += [f"    {key}: {kind}" for key, kind in fields.items()] + [""]
    about = '"""All keywords of `custard.learn` but `seeds`."""'
    parts += ["", "class LearnKeywords(LearnOptions, MethodSettings, total=False):", f"    {about}"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(text(), end="")
