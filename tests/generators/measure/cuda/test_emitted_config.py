"""A config that is measured as emitted code is another one than the config itself, in every process."""

import copy
import pickle

from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.cuda.artifacts import Emitted, only_emitted

PLAIN = template(AUTO, (1, 1, 1))


def test_it_equals_no_other_config():
    emitted = Emitted.code_of(PLAIN)
    assert emitted != PLAIN
    assert emitted != PLAIN
    assert len({emitted, PLAIN}) == 2
    assert (emitted, emitted.plain) == (Emitted.code_of(PLAIN), PLAIN)


def test_it_stays_one_on_its_way_to_another_process():
    for config in (Emitted.code_of(PLAIN), PLAIN):
        for again in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
            assert (type(again), again, hash(again)) == (type(config), config, hash(config))
            assert only_emitted(again) == only_emitted(config)
