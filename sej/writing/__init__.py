"""Writing a journal: finding its end, appending, alone or shared, and exactly once."""

__all__: list[str] = []
