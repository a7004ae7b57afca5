"""Builds the wheel and runs it where only the wheel is: a program, since it makes an environment of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUN = ["run", "prompt_pfl", "--data", "phantom", "--rounds", "1", "--local-epochs", "1"]
QUICK = ["-O", "local_unit=batches", "-O", "local_baseline=false"]


def call(*command: str | Path, cwd: Path) -> None:
    """Run a command; its failure is ours."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def main() -> None:
    """The wheel, unpacked into another environment that borrows this one's dependencies, runs on the phantom set."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            ROOT,
            "--no-deps",
            "--no-build-isolation",
            "-q",
            "-w",
            folder,
            cwd=folder,
        )
        wheel = next(folder.glob("medfedvqa-*.whl"))
        call(sys.executable, "-m", "venv", folder / "other", cwd=folder)
        python = folder / "other" / "bin" / "python"
        site = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True
        ).strip()
        # Dependencies come from this environment, by path: the editable project itself does not.
        dependencies = next(path for path in sys.path if path.endswith("site-packages"))
        Path(site, "dependencies.pth").write_text(dependencies + "\n")
        call(python, "-m", "pip", "install", "--no-deps", "--ignore-installed", "-q", wheel, cwd=folder)
        where = subprocess.check_output(
            [python, "-c", "import medfedvqa; print(medfedvqa.__file__)"], text=True, cwd=folder
        )
        if not where.startswith(str(folder)):
            raise SystemExit(f"the wheel is not what runs: {where}")
        call(folder / "other" / "bin" / "medfedvqa", *RUN, *QUICK, "--out", folder / "run", cwd=folder)
        call(folder / "other" / "bin" / "medfedvqa", "audit", "verify", "--no-network", folder / "run", cwd=folder)
        # The pages' style sheet is read when the server is made.
        call(python, "-c", "from audits.ui import AuditServer; AuditServer({}, {}).server_close()", cwd=folder)


if __name__ == "__main__":
    main()
