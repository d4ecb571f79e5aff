"""Small made folders of the layout of a release's checkout, with words of our own."""

from collections.abc import Mapping
from pathlib import Path

DSG: Mapping[str, str] = {
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
TIFA: Mapping[str, str] = {
    "tifascore/question_gen.py": '''
raise SystemExit("a checkout is never run")
categories = ["animal", "color"]
prompt = """
Ask two questions.

Description: """
''',
}

VPEVAL: Mapping[str, str] = {
    "src/open_ended_prompt_generation/generate_open_ended_prompts.py": """
import openai
prompt = "Write. Description: "
""",
}
LLMSCORE: Mapping[str, str] = {
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
VIESCORE: Mapping[str, str] = {
    "viescore/vie_prompts.py": """
_context_no_delimit = "Look."
_prompts_0shot_one_image_gen_rule = "One image."
_prompts_0shot_t2i_rule_SC = "Does it show <prompt>?"
_prompts_0shot_two_image_edit_rule = "Two images."
_prompts_0shot_tie_rule_SC = "Is it done: <instruction>?"
_prompts_0shot_rule_PQ = "Is it well made?"
""",
}
GEDIT: Mapping[str, str] = {"GEdit-Bench/viescore/vie_prompts.py": VIESCORE["viescore/vie_prompts.py"]}
EDITSCORE: Mapping[str, str] = {
    "editscore/vie_prompts.py": """
_context_no_delimit_reasoning_first = "Look 10 times."
_prompts_0shot_two_image_edit_rule = "Two images."
_prompts_0shot_tie_rule_SC = "0 to 10, is it done: <instruction>?"
_prompts_0shot_rule_PQ = "0 to 10, is it well made?"
""",
}
UNIGENBENCH: Mapping[str, str] = {
    "eval/src/eval_common.py": """
EXPLANATION_DICT_EN = {"Style": "how it is painted", "Color": "which colour"}
EXPLANATION_DICT_ZH = {"风格": "画风"}
SYSTEM_PROMPT_EN_TEMPLATE = "Of {prompt} check {testpoint}, {explanation}, {test_explanation}."
SYSTEM_PROMPT_ZH_TEMPLATE = "{prompt}：{testpoint}，{explanation}，{test_explanation}。"
LANG_CONFIGS = {
    "en": {"explanation_dict": EXPLANATION_DICT_EN, "checkpoint_header": "Means", "checkpoint_desc_header": "Wants"},
    "zh": {"explanation_dict": EXPLANATION_DICT_ZH, "checkpoint_header": "说明", "checkpoint_desc_header": "描述"},
}
""",
}
WISE: Mapping[str, str] = {
    "vllm_eval.py": """
def build_evaluation_messages(prompt_data, image):
    return [
        {"role": "system", "content": [{"type": "text", "text": "You judge."}]},
        {"role": "user", "content": [
            {"type": "text", "text": f"Is {prompt_data['Prompt']} so: {prompt_data['Explanation']}?"},
            {"type": "image_url", "image_url": {"url": f"data:{image}"}},
        ]},
    ]
""",
}
PRISM_BENCH: Mapping[str, str] = {
    "evaluation/eval_qwen25.py": "def get_message_templates():\n"
    + "".join(f'    messages_{number} = """{number} {{{{{{text_prompt}}}}}}"""\n' for number in range(1, 8))
    + '    messages_8 = "8 {text_prompt}"\n',
}
QWEN_IMAGE_BENCH: Mapping[str, str] = {
    "checklists.py": """
QUALITY_CHECKLIST = "Q"
AESTHETICS_CHECKLIST = ALIGNMENT_CHECKLIST = REAL_WORLD_FIDELITY_CHECKLIST = CREATIVE_GENERATION_CHECKLIST = "C"
SYSTEM_PROMPT = ("You " "judge.")
USER_PROMPT_TEMPLATE = "Of {prompt}\\n<image>\\njudge {level1_dim}: {format_checklist}. {{}}"
""",
    "score_utils.py": """
CHECKLIST_L3_TO_L2 = {"Quality": {"x": "A", "y": "A", "z": "B"}}
L3_RENAME = {"Quality": {"Y": "y"}}
""",
}


def write(folder: Path, files: Mapping[str, str]) -> str:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(folder)
