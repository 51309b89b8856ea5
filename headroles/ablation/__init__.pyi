from . import metrics as metrics
from .curves import ablation_curve as ablation_curve
from .curves import areas as areas
from .curves import orders as orders
from .effects import ablate as ablate
from .effects import ablate_sets as ablate_sets
from .evaluation import evaluate as evaluate
