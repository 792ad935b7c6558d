"""Tensor parallelism: a model's heads and columns divided among the ranks of one group.

A rank is a process. It finds the group by the environment that torchrun sets: RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR, MASTER_PORT. Every rank runs::

    group = RankGroup.join(device=settings.device, start_timeout=600, step_timeout=30)
    part = load_part(name, group, dtype="bfloat16", page_size=16, exact=True)
    if group.rank == 0:
        backend = LeadingBackend(part, group)  # a Backend, for the engine; backend.end() at the end
    else:
        follow(part, group)  # returns at the end; RankGroupError if rank 0 is gone

Rank 0 tells each call as integers (`calls`), then all ranks compute it. An error on any rank ends
the group, because the others wait in the middle of a step: each call after that raises
RankGroupError at once. The process of a rank then has to end, so that the others notice.

- A rank that has died fails the other ranks' next call within a second. One that is frozen fails it
  after ``step_timeout`` seconds. A rank that waits for calls has no timeout: it notices only that
  rank 0 is gone.
- ``memory_mib`` of `Backend.reserve` is the memory of each rank. The smallest page count holds.
- `LeadingBackend.mark` depends on the number of ranks, because a text is promised for that number.
- All ranks need the same checkpoint, dtype, page size and versions: `load_part` compares them.
"""
