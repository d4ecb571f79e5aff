"""Small imitations of the releases' repositories: the same folder layout, with prompts of our own."""

from collections.abc import Mapping
from pathlib import Path

DSG_FILES: Mapping[str, str] = {
    "dsg/query_utils.py": '''
import string
raise SystemExit("a checkout is never run")
_PROMPT_TEMPLATE = string.Template("""
$preamble

$examples

$test_input_output
""".strip())
_EXAMPLES_TEMPLATE = string.Template("""
$input_name: $input
$output_name: $output""".strip())
_TEST_TEMPLATE = string.Template("""
$input_name: $test_input
$output_name: """.lstrip())
_TUPLE_PREAMBLE = """Say what is there.
""".strip()
_DEPENDENCY_PREAMBLE = """Say what needs what.""".strip()
_QUESTION_PREAMBLE = """Ask.""".strip()
TIFA160_ICL_TRAIN_IDS = ["second"]
''',
    "dsg/data/tifa160-dev-anns.csv": """item_id,text,proposition_id,dependency,tuple,question_natural_language
first,a dog,1,0,entity - whole (dog),Is there a dog?
second,"a cup, blue",1,0,entity - whole (cup),Is there a cup?
second,"a cup, blue",2,1,"attribute -  color (cup, blue)",Is the cup blue?
""",
}
TIFA_FILES: Mapping[str, str] = {
    "tifascore/question_gen.py": '''
raise SystemExit("a checkout is never run")
categories = ["animal", "color"]
prompt = """
Ask two questions.

Description: """
''',
}

VPEVAL_FILES: Mapping[str, str] = {
    "src/open_ended_prompt_generation/generate_open_ended_prompts.py": """
import openai
prompt = "Write. Description: "
""",
}
LLMSCORE_FILES: Mapping[str, str] = {
    "llm_descriptor/visual_descriptor.py": """
class VisualDescriptor:
    def describe(self, local_description, global_description, width, height):
        prompt = f"All: {local_description}\\nParts: {global_description}\\n{width}X{height}"
""",
    "llm_evaluator/evaluation_instruction.py": """
class EvaluationInstructor:
    def __init__(self):
        self.evaluation_instruction_1 = "Rate and count."
        self.evaluation_instruction_2 = "Count four."
    def score(self, description, text_prompt):
        prompt = f"{text_prompt} / {description}: {self.evaluation_instruction_1}"
""",
}
VIESCORE_FILES: Mapping[str, str] = {
    "viescore/vie_prompts.py": """
_context_no_delimit = "Look."
_prompts_0shot_one_image_gen_rule = "One image."
_prompts_0shot_t2i_rule_SC = "Does it show <prompt>?"
_prompts_0shot_two_image_edit_rule = "Two images."
_prompts_0shot_tie_rule_SC = "Is it done: <instruction>?"
_prompts_0shot_rule_PQ = "Is it well made?"
""",
}


def write_release(folder: Path, files: Mapping[str, str]) -> str:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(folder)
