"""``python -m agent_envs new my_task``: write the folder of a small task, with tests and training, as a start for your own.

The files are the templates in the folder `new_task`, with names filled in.
"""

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template

_TEMPLATES = Path(__file__).parent / "new_task"


def write(name: str, parent: Path) -> Path:
    """Write the folder ``parent/name`` with a task, its test and a README; returns its path.

    Raises:
        ValueError: if ``name`` is not a module name in lower case, or is taken by a module or by a name that the task imports.
        FileExistsError: if the folder exists; nothing is overwritten.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"a task is called like a Python module, in lower case, such as my_task; got {name!r}")
    folder = parent / name
    if folder.exists():
        raise FileExistsError(f"there is a {folder} already, and nothing is overwritten: choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"there is a Python module {name} already, which the task would hide: choose another name")
    task = "".join(word.capitalize() for word in name.split("_"))
    if task in re.findall(r"\b[A-Z]\w+", (_TEMPLATES / "task.py.txt").read_text(encoding="utf-8").partition("def ")[0]):
        raise ValueError(f"{task} is a name that the task itself imports: choose another name")
    words = {"module": name, "task": task, "id": f"Mine/{task}-v0", "title": name.replace("_", " ").capitalize()}
    folder.mkdir(parents=True)
    for template, file in {"task.py": f"{name}.py", "test.py": f"test_{name}.py", "README.md": "README.md"}.items():
        text = Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8"))
        (folder / file).write_text(text.substitute(words), encoding="utf-8")
    return folder
