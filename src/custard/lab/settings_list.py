"""A method's settings as a list: name, type, default, what each does. Read from the methods' own `Settings`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from custard.core.errors import CustardError, one_of
from custard.core.number_format import html_table
from custard.lab.methods import method
from custard.task.settings import FORMER_SETTING_NAMES, settings_class

__all__ = ["Setting", "SettingsList", "settings"]


@dataclass(frozen=True)
class Setting:
    """One setting of a method."""

    name: str
    kind: str  # its type, as written
    default: Any
    about: str
    presets: dict[str, Any] = dataclasses.field(
        default_factory=dict
    )  # environment -> value, where a preset has its own


@dataclass(frozen=True, repr=False)
class SettingsList:
    """The settings of a method under a preset; shows itself as a table."""

    method: str
    preset: str
    entries: tuple[Setting, ...]

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, name: str) -> Setting:
        """Return a setting by its present or former name."""
        found = {entry.name: entry for entry in self.entries}
        name = FORMER_SETTING_NAMES.get(name, name)
        if name not in found:
            raise CustardError(one_of("setting", name, found))
        return found[name]

    def __repr__(self) -> str:
        heads = [f"{entry.name}={entry.default!r}" for entry in self.entries]
        width = max(map(len, heads), default=0)
        lines = [f"{head:<{width}}  {entry.about}".rstrip() for head, entry in zip(heads, self.entries, strict=True)]
        return "\n".join([f"settings of {self.method}, preset {self.preset}", *lines])

    def _repr_html_(self) -> str:
        return html_table({f"{entry.name} = {entry.default!r}": entry.about for entry in self.entries})


def settings(name: str | None = None, preset: str | None = None) -> SettingsList:
    """Return the settings of a method (of the default one unless named), each with its default and what it does.

    >>> import custard
    >>> custard.settings("plan")["seconds"].default
    60.0
    """
    called, module = method(name)
    presets = getattr(module, "PRESETS", {"tuned": {}})
    chosen = preset or "tuned"
    if chosen not in presets:
        raise CustardError(one_of("preset", chosen, presets))
    form = settings_class(module, chosen)
    texts: dict[str, str] = {}
    for base in reversed(form.__mro__):
        if dataclasses.is_dataclass(base) and isinstance(base, type):
            texts |= {key: text for key, text in field_texts(base).items() if text}
    entries = []
    for field in dataclasses.fields(form):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        own = {env or "any": given[field.name] for env, given in presets[chosen].items() if field.name in given}
        entries.append(Setting(field.name, str(field.type), default, texts.get(field.name, ""), own))
    return SettingsList(called, chosen, tuple(entries))


def field_texts(form: type) -> dict[str, str]:
    """Return what the source says of each field of a dataclass: the text below it, or its comment."""
    source = inspect.getsource(form)
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines, found = source.splitlines(), {}
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node, after in zip(tree.body, [*tree.body[1:], None]):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            text = after.value.value
        else:
            text = comments.get(node.end_lineno or node.lineno, "")
            above: list[str] = []
            row = node.lineno - 1
            while not text and row in comments and lines[row - 1].lstrip().startswith("#"):
                above.insert(0, comments[row])
                row -= 1
            text = text or " ".join(above)
        found[node.target.id] = " ".join(text.split())
    return found
