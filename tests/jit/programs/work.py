def leaf(n):
    s = 0
    for i in range(n):
        s += i % 7
    return s


def middle(n):
    return leaf(n) + 1


def outer(n):
    total = 0
    for _ in range(4):
        total += middle(n)
    return total


print("ready", flush=True)
while True:
    outer(5000)
