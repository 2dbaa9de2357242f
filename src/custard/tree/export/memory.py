"""What an exported tree with a history needs beside its decisions: the last steps, so that one gives observations only.

A memory holds the vector that the tree decides on (`custard.core.history`) and the last action. Before each decision
the steps move back by one; the first observation after a reset stands for all steps before it.
"""

from __future__ import annotations

from collections.abc import Callable

from custard.tree.memory import MemoryLayout
from custard.tree.tree import Tree

__all__ = ["C_NAMES", "c_memory", "python_memory", "rust_memory"]

Literal = Callable[[float], str]

#: What the C file defines for itself.
C_NAMES = (
    "custard_decide", "custard_memory", "custard_memory_reset", "custard_memory_act", "custard_memory_took",
    "custard_reset", "custard_took", "custard_only",
)  # fmt: skip

C_SOURCE = """\
/* What is remembered of an episode (steps: @STEPS@). All zeros is a memory that has been reset. */
struct custard_memory {
    double x[@SIZE@]; /* what the tree decides on: the present observation, then each past step */
    double action[@ACTIONS@]; /* the last action */
    int begun;
};

static struct custard_memory custard_only;

/* Call this before each episode. */
void custard_memory_reset(struct custard_memory *memory)
{
    memory->begun = 0;
}

/* Call this after an action that was not the one decided on. */
void custard_memory_took(struct custard_memory *memory, @TAKEN_PARAMETER@)
{
@RECORD@
}

/* Call this once per step, with the present observation. */
@RETURNS@ custard_memory_act(struct custard_memory *memory, const double *obs@ACTION_PARAMETER@)
{
    double *x = memory->x;
    if (memory->begun) {
        for (int k = @SIZE@ - 1; k >= @SECOND@; k--) {
            x[k] = x[k - @STEP@];
        }
        for (int k = 0; k < @N@; k++) {
            x[@N@ + k] = x[k];
        }
        for (int k = 0; k < @ACTIONS@; k++) {
            x[@N@ + @N@ + k] = memory->action[k];
        }
    } else {
        static const double first[] = {@FIRST@};
        for (int step = @N@; step < @SIZE@; step += @STEP@) {
            for (int k = 0; k < @N@; k++) {
                x[step + k] = obs[k];
            }
            for (int k = 0; k < @ACTIONS@; k++) {
                x[step + @N@ + k] = first[k];
            }
        }
        memory->begun = 1;
    }
    for (int k = 0; k < @N@; k++) {
        x[k] = obs[k];
    }
@DECIDE@
}

/* The same with one memory that this file holds. */
void custard_reset(void)
{
    custard_memory_reset(&custard_only);
}

void custard_took(@TAKEN_PARAMETER@)
{
    custard_memory_took(&custard_only, action);
}

@RETURNS@ custard_act(const double *obs@ACTION_PARAMETER@)
{
    @RETURN@custard_memory_act(&custard_only, obs@ACTION_ARGUMENT@);
}

/* Floats are widened to double, which changes no decision. */
@RETURNS@ custard_act_f(const float *obs@ACTION_PARAMETER@)
{
    double wide[@N@];
    for (int k = 0; k < @N@; k++) {
        wide[k] = obs[k];
    }
    @RETURN@custard_memory_act(&custard_only, wide@ACTION_ARGUMENT@);
}
"""

RUST_SOURCE = """\
/// Numbers of one observation.
pub const OBSERVATION: usize = @N@;

/// What is remembered of an episode (steps: @STEPS@): `reset` before each episode, then `act` once per step.
pub struct Memory {
    x: [f64; FEATURES],
    action: [f64; @ACTIONS@],
    begun: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    pub const fn new() -> Self {
        Memory { x: [0.0; FEATURES], action: [0.0; @ACTIONS@], begun: false }
    }

    pub fn reset(&mut self) {
        self.begun = false;
    }

    /// Decides on the present observation and remembers both.
    pub fn act(&mut self, obs: &[f64; OBSERVATION]) -> @RESULT@ {
        let x = &mut self.x;
        if self.begun {
            for k in (@SECOND@..FEATURES).rev() {
                x[k] = x[k - @STEP@];
            }
            for k in 0..OBSERVATION {
                x[OBSERVATION + k] = x[k];
            }
            x[2 * OBSERVATION..@SECOND@].copy_from_slice(&self.action);
        } else {
            for step in (OBSERVATION..FEATURES).step_by(@STEP@) {
                x[step..step + OBSERVATION].copy_from_slice(obs);
                x[step + OBSERVATION..step + @STEP@].copy_from_slice(&[@FIRST@]);
            }
            self.begun = true;
        }
        x[..OBSERVATION].copy_from_slice(obs);
        let action = act(&self.x);
        self.took(&action);
        action
    }

    /// Tells of an action that was done instead of the one decided on.
    pub fn took(&mut self, action: &@RESULT@) {
@RECORD@
    }
}
"""

PYTHON_SOURCE = '''\
class Memory:
    """What is remembered of an episode (steps: @STEPS@): reset() before each episode, then act(obs) once per step."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.x, self.action = None, None

    def act(self, obs):
        """Decide on the present observation, and remember both."""
        now = [float(obs[k]) for k in range(@N@)]
        if self.x is None:
            self.x = now + (now + [@FIRST@]) * @STEPS@
        else:
            self.x = now + self.x[:@N@] + self.action + self.x[@N@:@KEPT@]
        answer = decide(self.x)
        self.took(answer)
        return answer

    def took(self, action):
        """Tell of an action that was done instead of the one decided on."""
        self.action = [@RECORD@]


_memory = Memory()
reset, act, took = _memory.reset, _memory.act, _memory.took
'''

SINGLE = '''\
def _single(value):
    """Return a number as a 32-bit float holds it: so are past actions kept."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return 1e999 if value > 0 else -1e999
'''


def c_memory(tree: Tree, memory: MemoryLayout, literal: Literal) -> list[str]:
    """Return the C around `custard_decide`, which decides on the whole vector."""
    if tree.actions.discrete:
        words = {
            "RETURNS": "int", "RETURN": "return ", "TAKEN_PARAMETER": "int action", "ACTION_PARAMETER": "",
            "ACTION_ARGUMENT": "", "RECORD": "    memory->action[0] = action;",
            "DECIDE": "    int action = custard_decide(x);\n    memory->action[0] = action;\n    return action;",
        }  # fmt: skip
    else:
        kind, cast = ("double", "(float)") if tree.actions.kind == "box" else ("long long", "(double)")
        loop = f"    for (int k = 0; k < {tree.actions.size}; k++) {{"
        record = f"{loop}\n        memory->action[k] = {cast}action[k];\n    }}"
        words = {
            "RETURNS": "void", "RETURN": "", "TAKEN_PARAMETER": f"const {kind} *action",
            "ACTION_PARAMETER": f", {kind} *action", "ACTION_ARGUMENT": ", action", "RECORD": record,
            "DECIDE": "    custard_decide(x, action);\n    custard_memory_took(memory, action);",
        }  # fmt: skip
    return _filled(C_SOURCE, memory, literal, words).splitlines()


def rust_memory(tree: Tree, memory: MemoryLayout, result: str, literal: Literal) -> list[str]:
    """Return the Rust around `act`, which decides on the whole vector."""
    if tree.actions.discrete:
        record = "        self.action[0] = *action as f64;"
    else:
        cast = "as f32 as f64" if tree.actions.kind == "box" else "as f64"
        loop = "        for (kept, value) in self.action.iter_mut().zip(action) {"
        record = f"{loop}\n            *kept = *value {cast};\n        }}"
    return _filled(RUST_SOURCE, memory, literal, {"RESULT": result, "RECORD": record}).splitlines()


def python_memory(tree: Tree, memory: MemoryLayout, literal: Literal) -> list[str]:
    """Return the Python around `decide`, which decides on the whole vector."""
    if tree.actions.discrete:
        record = "float(action)"
    else:
        record = f"{'_single' if tree.actions.kind == 'box' else 'float'}(value) for value in action"
    lines = ["import struct", "", "", *SINGLE.splitlines(), "", ""] if tree.actions.kind == "box" else []
    return lines + _filled(PYTHON_SOURCE, memory, literal, {"RECORD": record}).splitlines()


def _filled(source: str, memory: MemoryLayout, literal: Literal, words: dict[str, str]) -> str:
    """Return a source with the sizes of a memory, and other words, in their places."""
    sizes = {
        "STEPS": memory.steps, "N": memory.n, "ACTIONS": len(memory.first_action), "STEP": memory.step_size,
        "SIZE": memory.size, "SECOND": memory.n + memory.step_size, "KEPT": memory.size - memory.step_size,
    }  # fmt: skip
    first = ", ".join(literal(value) for value in memory.first_action)
    for name, text in {**sizes, **words, "FIRST": first}.items():
        source = source.replace(f"@{name}@", str(text))
    return source
