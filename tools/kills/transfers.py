"""Transfers between accounts: what the transaction of a number does, and what is true of all that were committed.

Everything about a transaction follows from its number. So its row of the ledger, its note and the balances of two accounts tell of each
other, and a transaction that is half there shows. Worker W of N takes the numbers that are W modulo N. It keeps the notes of its last
numbers only, so pages are freed and used again. Some transactions are rolled back; none of these may ever be found.
"""

import hashlib
import os

ACCOUNTS = 50
BALANCE = 100_000
NOTES_KEPT = 40
NOTE_BYTES_MAX = 12_000

SETUP = [
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
    "CREATE TABLE ledger (id INTEGER PRIMARY KEY, source INTEGER NOT NULL, target INTEGER NOT NULL, amount INTEGER NOT NULL)",
    "CREATE INDEX ledger_accounts ON ledger (source, target)",
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, content TEXT NOT NULL)",
] + [f"INSERT INTO accounts VALUES ({account}, {BALANCE})" for account in range(ACCOUNTS)]


def transfer(number):
    """Source, target and amount of a transaction, its note, and whether it is rolled back."""
    digest = hashlib.sha256(b"transfer %d" % number).digest()
    source = digest[0] % ACCOUNTS
    target = (source + 1 + digest[1] % (ACCOUNTS - 1)) % ACCOUNTS
    size = 2 + int.from_bytes(digest[4:6], "little") % NOTE_BYTES_MAX
    note = hashlib.shake_256(b"note %d" % number).hexdigest(size // 2)
    return source, target, 1 + digest[2], note, digest[3] % 8 == 0


def say(word, number):
    """Tells the server's killer, at once."""
    os.write(1, b"%s %d\n" % (word.encode(), number))


def work(execute, begin, number, workers):
    """Transactions until one fails. A number is told before its transaction begins and when it was committed."""
    while True:
        source, target, amount, note, is_rolled_back = transfer(number)
        changes = {source: -amount, target: amount}
        if not is_rolled_back:
            say("begun", number)
        execute(begin)
        # In the order of accounts, so that no two workers wait for each other.
        for account in sorted(changes):
            execute(f"UPDATE accounts SET balance = balance + {changes[account]} WHERE id = {account}")
        execute(f"INSERT INTO ledger VALUES ({number}, {source}, {target}, {amount})")
        execute(f"INSERT INTO notes VALUES ({number}, '{note}')")
        execute(f"DELETE FROM notes WHERE id <= {number - NOTES_KEPT * workers} AND id % {workers} = {number % workers}")
        if is_rolled_back:
            execute("ROLLBACK")
        else:
            execute("COMMIT")
            say("acknowledged", number)
        number += workers


def check(query, workers):
    """Numbers of the transactions that are there, and what is wrong."""
    faults = []
    balances = dict.fromkeys(range(ACCOUNTS), BALANCE)
    found, last = set(), {}
    for number, source, target, amount in query("SELECT id, source, target, amount FROM ledger ORDER BY id"):
        wanted = transfer(number)
        if (source, target, amount) != wanted[:3]:
            faults.append(f"the ledger's row {number} is {(source, target, amount)} instead of {wanted[:3]}")
        if wanted[4]:
            faults.append(f"transaction {number} was rolled back, and is in the ledger")
        balances[source] -= amount
        balances[target] += amount
        found.add(number)
        last[number % workers] = max(last.get(number % workers, 0), number)
    there = dict(query("SELECT id, balance FROM accounts ORDER BY id"))
    if there != balances:
        wrong = {account: (there.get(account), balance) for account, balance in balances.items() if there.get(account) != balance}
        faults.append(f"balances do not follow from the ledger (account: found, wanted): {wrong}")
    notes = dict(query("SELECT id, content FROM notes ORDER BY id"))
    kept = {number for number in found if number > last[number % workers] - NOTES_KEPT * workers}
    if notes.keys() != kept:
        faults.append(f"notes missing: {sorted(kept - notes.keys())}; too many: {sorted(notes.keys() - kept)}")
    for number, content in notes.items():
        if content != transfer(number)[3]:
            faults.append(f"note {number} has other content than it was given")
    return sorted(found), faults
