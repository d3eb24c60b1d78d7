"""simzoo: train, evaluate, publish and search with learned similarities."""

from pathlib import Path

if not (Path(__file__).parent / "models").is_dir():
    raise ImportError(
        "simzoo's rooms are symbolic links, and this checkout has none: git wrote them as text files, as it does on "
        "Windows by default. Install the wheel, or clone anew with `git clone -c core.symlinks=true`."
    )
