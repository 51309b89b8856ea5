from . import metrics as metrics
from .curves import ablation_curve as ablation_curve
from .curves import areas as areas
from .curves import orders as orders
from .effects import ablate as ablate
from .effects import evaluate as evaluate
from .role_tests import test_roles as test_roles
from .shapley import shapley_values as shapley_values
