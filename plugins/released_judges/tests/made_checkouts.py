"""Files of made-up checkouts, laid out like checkouts of the releases but with our own wordings."""

from collections.abc import Mapping

UNIFIED_REWARD_FILES: Mapping[str, str] = {
    "benchmark_evaluation/vLLM_evaluation/test_qwen_genai_image.py": """
raise SystemExit("a checkout is never run")
for i in range(3):
    problem = f"Which is better?\\nCaption: [{prompt}]"
""",
    "inference_qwen/UnifiedReward-2.0-inference/pair_score_image_generation.py": """
problem = ("Score both.\\n" f"Caption: [{prompt}]")
""",
    "inference_qwen/UnifiedReward-2.0-inference/point_score_ACS_image_generation.py": """
problem = ("Score it.\\n" f"Caption: [{prompt}]")
""",
    "UnifiedReward-Think/inference_qwen/UnifiedReward-Think-qwen3-inference/qwen3_infer_cot_image_generation.py": """
problem = f'''Think.
        The caption is 「{prompt}」.
        '''
""",
    "UnifiedReward-Flex/flex_pair_rank_image_generation.py": '''
problem = f"""Prompt: [{prompt}]
{{
  "winner": "Image 1/2"
}}
"""
''',
    "UnifiedReward-Edit/edit_pointwise_instruction_following.py": """
problem = "Did it follow\\n{}: " + f"{instruction}\\n"
""",
    "UnifiedReward-Edit/edit_pointwise_quality.py": """
problem = "How good is it?\\n"
""",
    "UnifiedReward-Edit/edit_paiwise_score.py": """
problem = f"Score both edits.\\n\\nText instruction - {instruction}\\n"
""",
}
RATIONAL_REWARDS_FILES: Mapping[str, str] = {
    "reward_model_evaluation/modular_rm_eval/prompts.py": '''
GEN_PROMPT_TEMPLATE = """Request: {request}
1. A <image>
2. B <image>

Compare."""
EDIT_PROMPT_TEMPLATE = """Request: {request}
1. Source <image>
2. A <image>
3. B <image>"""
''',
    "README.md": '''
```python
def build_t2i_messages(prompt, image_bytes):
    system_prompt = (
        "You judge "
        "images."
    )
    user_instruction = f"""Instruction: {prompt}
1. Generated <image>

Judge."""
```
''',
    "diffusion_rl_training/train_qwen_edit_rationalrewards.py": '''
raise SystemExit("a checkout is never run")
SYSTEM_PROMPT = ("You judge " "edits.")
TASK_RELATED_TEMPLATE = """Instruction: {request}
1. Source <image>
2. Edited <image>

Answer. """
COMMON_TASK_GUIDELINE = """Four aspects."""
''',
}
GENAI_BENCH_FILES: Mapping[str, str] = {
    "genaibench/templates/image_generation/pairwise.txt": (
        "Judge.\nPrompt: <prompt>\nA: <left_image>\nB: <right_image>\n\nSay [[A>B]] or [[B>A]]."
    ),
}
MMRB2_FILES: Mapping[str, str] = {
    "evaluate/generate_judgements/evaluator_apis/llm_judges/evaluation_prompts.py": '''
def get_image_gen_prompt() -> str:
    """Return the prompt."""
    return """Compare. {"better_response": "A" or "B"}"""
def get_image_edit_prompt() -> str:
    return "Compare edits."
''',
}
GEDIT_BENCH_FILES: Mapping[str, str] = {
    f"src/prompts/assets/vlm/assessment/{name}/pairwise/v1.yaml": f"""
prompt_id: {name}
system_prompt: You are meticulous.
user_prompt:
  - text: |
      Judge {name}: {{{{ instruction }}}}.
      Original Image:
  - image:
      source: input_image
  - text: |
      Image A:
  - image:
      source: edited_images
      index: 0
  - text: |
      Image B:
  - image:
      source: edited_images
      index: 1
"""
    for name in ("visual_consistency", "instruction_following")
} | {
    "src/prompts/assets/vlm/assessment/visual_quality/pairwise/v1.yaml": """
system_prompt: You are an analyst.
user_prompt:
  - text: |
      Judge quality.
      Image A:
  - image: {source: edited_images, index: 0}
  - text: "Image B:"
  - image: {source: edited_images, index: 1}
""",
}
WEGENBENCH_FILES: Mapping[str, str] = {
    "evaluation/Consistency/CoT/demo/infer_demo.py": """
raise SystemExit("a checkout is never run")
PROMPT = ("看图。"
          "描述如下：")
""",
}
