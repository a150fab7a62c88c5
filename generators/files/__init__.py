"""Operations on whole table files: merge, compare, verify, pack, archive."""
