"""sqlite.py DATABASE JOURNAL setup | work FIRST WORKERS | check WORKERS: transfers in SQLite with synchronous=FULL.

`check` opens the database as any program would, which recovers it, and prints JSON: what is found and what is wrong.
"""

import json
import sqlite3
import sys

import transfers


def connect(path, journal):
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = FULL")
    # Few pages are kept and the log is short, so that the database itself is written often.
    connection.execute("PRAGMA cache_size = 20")
    connection.execute("PRAGMA wal_autocheckpoint = 60")
    mode = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()[0]
    if mode.upper() != journal.upper():
        raise sqlite3.OperationalError(f"the journal is {mode} instead of {journal}")
    return connection


def main(path, journal, verb, *numbers):
    numbers = [int(number) for number in numbers]
    try:
        connection = connect(path, journal)
        if verb == "setup":
            for statement in ["BEGIN IMMEDIATE", *transfers.SETUP, "COMMIT"]:
                connection.execute(statement)
        elif verb == "work":
            transfers.work(connection.execute, "BEGIN IMMEDIATE", *numbers)
        elif verb == "check":
            integrity = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            found, faults = transfers.check(lambda query: connection.execute(query).fetchall(), *numbers)
            faults += [f"integrity_check: {line}" for line in integrity if line != "ok"]
            print(json.dumps({"found": found, "faults": faults}))
            connection.close()
    except sqlite3.Error as error:
        sys.exit(f"{verb}: {getattr(error, 'sqlite_errorname', 'error')}: {error}")


main(*sys.argv[1:])
