from .api import Run as Run
from .api import judge as judge
from .api import open_run as open_run
from .api import score as score
from .jobs.scorer import open_scorer as open_scorer
from .operators.base.errors import ConfigError as ConfigError
from .operators.base.errors import ModelError as ModelError
from .operators.base.errors import PlumblineError as PlumblineError
from .operators.base.errors import SourceError as SourceError
from .operators.metrics.function import metric as metric
from .operators.rewards.trl import trl_reward as trl_reward
from .operators.scoring.scorer import Scorer as Scorer
from .plugins.training_loop.evaluation import Evaluation as Evaluation

__version__: str
