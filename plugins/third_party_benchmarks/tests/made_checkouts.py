"""Creates small folders laid out like upstream's checkouts, with invented wordings."""

from collections.abc import Mapping

UNIGENBENCH_FILES: Mapping[str, str] = {
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
WISE_FILES: Mapping[str, str] = {
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
PRISM_BENCH_FILES: Mapping[str, str] = {
    "evaluation/eval_qwen25.py": "def get_message_templates():\n"
    + "".join(f'    messages_{number} = """{number} {{{{{{text_prompt}}}}}}"""\n' for number in range(1, 8))
    + '    messages_8 = "8 {text_prompt}"\n',
}
QWEN_IMAGE_BENCH_FILES: Mapping[str, str] = {
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
BIZGENEVAL_FILES: Mapping[str, str] = {
    "evaluation/evaluate_prompt.py": """
LAYOUT_SYSTEM = "You judge {layouts}."
TEXT_SYSTEM = "You judge texts."
LAYOUT_USER = TEXT_USER = "\\nIs it so?\\n\\n{checklist}\\n"
EVAL_GENERATION_PROMPTS = {
    "layout": (LAYOUT_SYSTEM, LAYOUT_USER),
    "text1": (TEXT_SYSTEM, TEXT_USER),
}
""",
}
WEGENBENCH_FILES: Mapping[str, str] = {
    "evaluation/Consistency/QA/prompt/ans-check-questions-en.txt": "Look.\n\nNow, answer:\n",
    "evaluation/Consistency/QA/prompt/ans-check-questions.txt": "看图。\n\n请回答：",
}
