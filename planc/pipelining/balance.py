def balance(costs, *, num_stages, first=0, last=0):
    n = len(costs)
    q, r = divmod(n, num_stages)
    return tuple(q + (i < r) for i in range(num_stages))
