"""postgresql.py FOLDER USER setup | work FIRST WORKERS | check WORKERS: transfers in the PostgreSQL at the socket in FOLDER.

libpq is called directly, so nothing beside PostgreSQL's own packages is needed and each answer is seen as it was given.
`check` prints JSON: what is found and what is wrong, in the books of pgbench too.
"""

import ctypes
import json
import sys

import transfers

CONNECTION_OK, COMMAND_OK, TUPLES_OK = 0, 1, 2
# Type of a column, as the server numbers it.
TEXT = 25


def library():
    libpq = ctypes.CDLL("libpq.so.5")
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in [
        ("PQconnectdb", pointer, [text]),
        ("PQstatus", number, [pointer]),
        ("PQerrorMessage", text, [pointer]),
        ("PQexec", pointer, [pointer, text]),
        ("PQresultStatus", number, [pointer]),
        ("PQcmdStatus", text, [pointer]),
        ("PQntuples", number, [pointer]),
        ("PQnfields", number, [pointer]),
        ("PQftype", ctypes.c_uint, [pointer, number]),
        ("PQgetvalue", text, [pointer, number, number]),
        ("PQclear", None, [pointer]),
    ]:
        function = getattr(libpq, name)
        function.restype, function.argtypes = result, arguments
    return libpq


class Failed(Exception):
    """What the server answered, or that it did not."""


class Connection:
    def __init__(self, folder, user):
        self.libpq = library()
        self.handle = self.libpq.PQconnectdb(f"host={folder} user={user} dbname=postgres".encode())
        if self.libpq.PQstatus(self.handle) != CONNECTION_OK:
            raise self.failed("connecting")

    def failed(self, what):
        return Failed(f"{what[:40]}: {self.libpq.PQerrorMessage(self.handle).decode().strip()}")

    def execute(self, statement):
        """Rows of texts and numbers. A COMMIT that was answered by anything but COMMIT is an error."""
        libpq = self.libpq
        result = libpq.PQexec(self.handle, statement.encode())
        try:
            if libpq.PQresultStatus(result) not in (COMMAND_OK, TUPLES_OK):
                raise self.failed(statement)
            if statement == "COMMIT" and libpq.PQcmdStatus(result) != b"COMMIT":
                raise Failed(f"COMMIT was answered {libpq.PQcmdStatus(result)}")
            kinds = [str if libpq.PQftype(result, column) == TEXT else int for column in range(libpq.PQnfields(result))]
            rows = range(libpq.PQntuples(result))
            value = lambda row, column: libpq.PQgetvalue(result, row, column).decode()
            return [tuple(kind(value(row, column)) for column, kind in enumerate(kinds)) for row in rows]
        finally:
            libpq.PQclear(result)


def pgbench_faults(connection):
    """What pgbench keeps of accounts, tellers, branches and history has to have one sum."""
    columns = {"accounts": "abalance", "tellers": "tbalance", "branches": "bbalance", "history": "delta"}
    queries = [f"SELECT coalesce(sum({column}), 0) FROM pgbench_{table}" for table, column in columns.items()]
    sums = [connection.execute(query)[0][0] for query in queries]
    return [] if len(set(sums)) == 1 else [f"sums of pgbench's tables differ: {sums}"]


def main(folder, user, verb, *numbers):
    numbers = [int(number) for number in numbers]
    try:
        connection = Connection(folder, user)
        if verb == "setup":
            for statement in ["BEGIN", *transfers.SETUP, "COMMIT"]:
                connection.execute(statement)
        elif verb == "work":
            transfers.work(connection.execute, "BEGIN", *numbers)
        elif verb == "check":
            # Once through the tables alone and once through the indexes of their ids.
            connection.execute("SET enable_indexscan = off")
            connection.execute("SET enable_bitmapscan = off")
            found, faults = transfers.check(connection.execute, *numbers)
            connection.execute("SET enable_indexscan = on")
            connection.execute("SET enable_seqscan = off")
            again, more = transfers.check(connection.execute, *numbers)
            faults += more + ([] if found == again else ["an index shows other rows than the table"])
            print(json.dumps({"found": found, "faults": faults + pgbench_faults(connection)}))
    except Failed as error:
        sys.exit(f"{verb}: {error}")


main(*sys.argv[1:])
