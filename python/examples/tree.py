"""Copies a folder of this system into a pool, takes a snapshot, and prints what is in that.

    python3 tree.py IMAGE DATASET FOLDER
"""

import os
import shutil
import sys

import cenote


def main(image: str, dataset: str, folder: str) -> None:
    with cenote.open(image, write=True) as pool:
        files = pool.filesystem(dataset)
        for at, _, names in os.walk(folder):
            target = files.path(os.path.relpath(at, folder))
            target.mkdir(parents=True, exist_ok=True)
            for name in names:
                with open(os.path.join(at, name), "rb") as source, (target / name).open("wb") as copy:
                    shutil.copyfileobj(source, copy)
        snapshot = pool.dataset(dataset).snapshot("copied")
        for path, _, names in snapshot.filesystem().walk():
            for name in sorted(names):
                print(path / name, (path / name).stat().size)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(f"usage: {sys.argv[0]} IMAGE DATASET FOLDER", file=sys.stderr)
        sys.exit(2)
    try:
        main(*sys.argv[1:4])
    except cenote.Error as error:
        sys.exit(f"tree.py: {error}")
