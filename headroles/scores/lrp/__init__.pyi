from .composites import RULES as RULES
from .composites import Rules as Rules
from .conservation_report import conservation as conservation
from .conservation_report import totals as totals
from .context import lrp_rules as lrp_rules
