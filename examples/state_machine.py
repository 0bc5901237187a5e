"""A state machine in a journal: a step is appended only if no other process has taken one since the state was read."""

import sej

ORDER = "order-17"
STEPS = {"new": {"paid", "cancelled"}, "paid": {"shipped", "cancelled"}, "shipped": set(), "cancelled": set()}


def state() -> tuple[str, int]:
    """Return the state, and the offset of the step that would follow."""
    current = "new"
    with sej.Scanner(ORDER) as scanner:
        for message in scanner:
            current = message.value.decode()
        return current, scanner.offset


def step(writer: sej.SharedWriter, target: str) -> str:
    """Take a step if the state allows it; return the state after it."""
    while True:
        current, end = state()
        if target not in STEPS[current]:
            return current
        try:
            writer.append(target.encode(), expect_offset=end)
        except sej.ConflictError:
            continue  # another process has taken a step: look again
        return target


with sej.SharedWriter(ORDER) as clerk, sej.SharedWriter(ORDER) as customer:
    print(step(clerk, "paid"))
    print(step(customer, "cancelled"))
    print(step(clerk, "shipped"))  # too late
    assert state() == ("cancelled", 2)
