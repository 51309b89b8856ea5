from . import papers as papers
from . import specialists as specialists
from .compare_scores import compare as compare
from .preparation import prepare as prepare
from .preparation import prepared as prepared
from .replication import replicate as replicate
from .score_study import measure as measure
from .training_dynamics import dynamics as dynamics
