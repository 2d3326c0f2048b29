"""Why a bench run gives no number."""

from __future__ import annotations

from sglang_ext.reasons.model import EXCLUDED, FAIL, INCONCLUSIVE, NOTE, UNKNOWN, UNRECONCILED, Reason

ROWS: dict[str, Reason] = {
    "suite_invalid": Reason(
        FAIL,
        "The suite cannot be read, or says something a suite cannot say.",
        "Correct what the message names; docs/suites.md has every key.",
        2,
    ),
    "receipt_unwritable": Reason(
        FAIL,
        "A receipt, page, plan, or report cannot be written where --json or --html says, or would replace what it "
        "is made of, or anything that is not the like of it.",
        "Name a file of its own in a writable folder.",
        2,
    ),
    "not_verified": Reason(
        FAIL,
        "The verdict before the first run was not PASS, so nothing was measured. Where it was UNKNOWN, the status is 3.",
        "See the verify table: every problem in it names its own fix.",
    ),
    "no_endpoint": Reason(
        UNKNOWN,
        "The verified server could not be asked: no process of it listens where it should, or it does not answer.",
        "Wait until the server says it is ready; run the bench on its host and in its network namespace.",
        3,
    ),
    "verdict_lost": Reason(
        FAIL,
        "The server was verified before the first run and is not after the last one: a worker ended, changed or was replaced.",
        "See the server's log, restart it, and measure again.",
        4,
    ),
    "server_error": Reason(
        FAIL,
        "The server refused a run, or stopped it with an error.",
        "The message has the server's own words; see its log.",
    ),
    "connection_lost": Reason(
        FAIL,
        "The stream of a run broke before its end.",
        "See the server's log; nothing may sit between it and the client.",
    ),
    "run_timeout": Reason(
        FAIL,
        "A run did not end within the suite's timeout_s.",
        "Raise timeout_s, or see why the server is that slow.",
    ),
    "wrong_length": Reason(
        FAIL,
        "A run brought another number of tokens than the suite asks for: runs of different length compare nothing.",
        "Let the server honour ignore_eos, and keep prompt and tokens within its context length.",
    ),
    "usage_missing": Reason(
        FAIL,
        "The server did not say how many tokens came with each chunk; chunks are not tokens, so no rate can be stated.",
        'Take endpoint = "generate", or a server that answers stream_options.continuous_usage_stats.',
    ),
    "server_not_ready": Reason(
        FAIL,
        "An arm's server did not say that it is ready within the suite's ready_timeout_s.",
        "See its log in the campaign folder; raise ready_timeout_s where the model just takes longer.",
    ),
    "server_left_over": Reason(
        FAIL,
        "An SGLang server that no arm started runs on this host. It holds memory, bandwidth and cores that arms are measured on.",
        "End it, then run the campaign again with the same --out: finished blocks are kept.",
    ),
    "keeper_lost": Reason(
        FAIL,
        "The process that keeps an arm's server was ended from outside. The server was ended after it.",
        "See who ends processes here (the kernel's log for want of memory), then run the campaign again.",
    ),
    "launch_failed_twice": Reason(
        FAIL,
        "A launch of the same arm failed for the second time. A comparison would rest on the launches that happened to work.",
        "See the reason of each launch and its server's log, mend the arm, and run the campaign again with the same --out.",
    ),
    "block_unfinished": Reason(
        NOTE,
        "The campaign was interrupted within this block. Its launches do not count, as their partners would be of another "
        "time; a note of the receipt counts them.",
        "Nothing to do: the whole block was repeated, or will be.",
    ),
    "outputs_differ": Reason(
        NOTE,
        "Arms did not generate the same text, although all decode greedily. Batch shapes of their own may tip near-ties in "
        "bfloat16; a wrong kernel or draft does it too.",
        "Compare the arms in float32, or look at where their outputs part.",
    ),
    "gpu_busy": Reason(
        FAIL,
        "A process that is not the server's holds a GPU: a number taken beside it is not the server's own.",
        "End the process the message names, or leave it the GPU and name others in CUDA_VISIBLE_DEVICES.",
    ),
    "gpu_memory_in_use": Reason(
        FAIL,
        "A GPU has memory in use that no listed process holds: what an earlier server left, or a process outside this container.",
        "Wait until the driver has taken it back; look for the process with nvidia-smi on the host.",
    ),
    "gpu_unseen": Reason(
        UNKNOWN,
        "An NVIDIA driver is here, but who holds its GPUs cannot be asked.",
        "Install nvidia-ml-py; in a container, pass the driver's libraries in (NVIDIA_DRIVER_CAPABILITIES=utility,compute).",
        3,
    ),
    "throttled": Reason(
        FAIL,
        "Heat, a power brake or the board held a GPU's clocks down during a run. It ends no campaign: the launch's "
        "pair is excluded.",
        "Cool the machine or lower its power limit for all arms alike; docs/machine-state.md has each reason.",
        makes=EXCLUDED,
    ),
    "throttling_unseen": Reason(
        NOTE,
        "Whether a GPU was throttled cannot be read: neither its event reasons nor their times.",
        "See why beside the mark: a virtual GPU, a MIG slice or an older driver does not tell.",
    ),
    "power_capped": Reason(
        NOTE,
        "A GPU ran at its power limit for a good part of a run. That is how it keeps the limit under work, and no fault.",
        "Nothing, where all arms have the same limit; the report shows the clocks it came to.",
    ),
    "clock_dropped": Reason(
        FAIL,
        "A GPU's clocks were lower in one run than in another of the same launch, and no power cap explains it. It ends no "
        "campaign: the launch's pair is excluded.",
        "Lock the clocks (nvidia-smi -lgc), or see what changed them: heat, another user, an application clock.",
        makes=EXCLUDED,
    ),
    "pcie_degraded": Reason(
        FAIL,
        "The PCIe link of a GPU was slower or narrower under load in one run than in another of the same launch. It ends "
        "no campaign: the launch's pair is excluded.",
        "Look at the kernel's log for link errors; reseat the card or its riser.",
        makes=EXCLUDED,
    ),
    "pcie_below_maximum": Reason(
        NOTE,
        "Under load the PCIe link of a GPU never reached what card and slot can do. All arms had the same link.",
        "See the slot, its riser and the firmware's setting, if the link should be faster.",
    ),
    "ecc_errors": Reason(
        FAIL,
        "A GPU's memory had errors that could not be corrected, or rows of it wait to be replaced. It ends no campaign: the "
        "launch's pair is excluded.",
        "Reset or replace the GPU; nvidia-smi -q has the counts.",
        makes=EXCLUDED,
    ),
    "ecc_corrected": Reason(
        NOTE,
        "A GPU corrected errors of its memory while it was watched: the result is right.",
        "Keep an eye on the count; a card that goes on like this should be replaced.",
    ),
    "co_tenant": Reason(
        FAIL,
        "A process that is not the server's held a GPU during the launch. It ends no campaign: the launch's pair is excluded.",
        "Keep others off the GPUs until the campaign has ended.",
        makes=EXCLUDED,
    ),
    "cpu_steal": Reason(
        FAIL,
        "The hypervisor gave a part of the CPUs' time to other machines during the launch. It ends no campaign: the launch's "
        "pair is excluded.",
        "Measure on a machine of your own, or on reserved CPUs.",
        makes=EXCLUDED,
    ),
    "cpu_throttled": Reason(
        FAIL,
        "Heat held a CPU back during the launch. It ends no campaign: the launch's pair is excluded.",
        "Cool the machine; the kernel's log has the events.",
        makes=EXCLUDED,
    ),
    "cpu_busy": Reason(
        NOTE,
        "Other programs used a good part of the host's CPUs during the launch.",
        "Stop the programs the mark names, if rates scatter.",
    ),
    "cpu_limited": Reason(
        NOTE,
        "The quota of a control group held the server back: all arms have it, and all are slower for it.",
        "Raise the container's CPU limit.",
    ),
    "machine_changed": Reason(
        FAIL,
        "The machine is not what it was in the campaign's first launch: driver, firmware, power limit, clocks, link or governor; "
        "or a running server's GPUs are not the like of the first one's. It ends no campaign: the launch's pair is excluded.",
        "Set it back, or begin a new campaign.",
        makes=EXCLUDED,
    ),
    "campaign_folder": Reason(
        FAIL,
        "The campaign folder cannot be used: it is not ours, not private, in use, or holds something else.",
        "Name another folder with --out, or none.",
        2,
    ),
    "campaign_differs": Reason(
        FAIL,
        "The campaign folder holds a campaign of another suite, or one that repeats another receipt, or the suite was changed "
        "since. Launches of two suites cannot be paired.",
        "Restore the suite, or name another folder with --out.",
        2,
    ),
    "journal_damaged": Reason(
        FAIL,
        "A file in the campaign folder is torn, or is not as the campaign wrote it.",
        "A launch's file: move it away, and its block is repeated. campaign.json: restore it, or begin again with another --out.",
        2,
    ),
    "receipt_unreadable": Reason(
        FAIL,
        "The receipt cannot be read, is none of ours, or says things that do not go together.",
        "Name a file that bench run has written.",
        2,
    ),
    "rerun_differs": Reason(
        FAIL,
        "What the receipt was taken on is no longer what is here; the message lists what differs.",
        "Restore it, or begin a campaign of its own with bench run.",
    ),
    "control_failed": Reason(
        FAIL,
        "The A/A control, the baseline under another name, differs from the baseline by more than chance allows. So "
        "would any arm. One sound campaign in twenty looks so by chance.",
        "See what moved in the report (clocks, temperatures, co-tenants), settle it, and repeat the campaign.",
    ),
    "launch_refused": Reason(
        FAIL,
        "A launch of the campaign was refused. What could not be verified once is not compared.",
        "See the launch's reason, correct it, and begin a new campaign.",
    ),
    "launch_failed": Reason(
        FAIL,
        "A launch came to no figure. It ends no campaign: the launch's pair is excluded.",
        "See the launch's reason and its server's log.",
        makes=EXCLUDED,
    ),
    "unreconciled": Reason(
        FAIL,
        "Client and server do not agree about the rate of a launch, so its pair is excluded; or too few launches could be "
        "reconciled to believe the campaign.",
        "See each launch's reconciliation; docs/reconciliation.md has what usually stands between the two.",
        3,
        UNRECONCILED,
    ),
    "campaign_unfinished": Reason(
        FAIL,
        "The campaign has not come to its planned end, nor to a look it was allowed to stop at: it is INCONCLUSIVE.",
        "Run it again with the same --out: it goes on where it was.",
        5,
        INCONCLUSIVE,
    ),
    "too_few_pairs": Reason(
        FAIL,
        "Fewer than two pairs of an arm count, so nothing is known about how much they scatter: the campaign is INCONCLUSIVE.",
        "See why pairs are excluded; plan more blocks.",
        5,
        INCONCLUSIVE,
    ),
    "not_decided": Reason(
        FAIL,
        "The campaign is sound and too small for what it asks: neither a difference nor its absence shows. It is INCONCLUSIVE.",
        "The message says what these pairs could have shown and, where that is too little, how many pairs would: begin again "
        "with that many blocks, in another --out, as a folder keeps the plan it was begun with.",
        5,
        INCONCLUSIVE,
    ),
    "speculation_not_in_effect": Reason(
        FAIL,
        "The server does not speculate as the arm asks: another algorithm or draft model, or decode lines without an "
        "accept length.",
        "See the warnings at the top of the server's log; correct the arm's speculative arguments.",
    ),
    "steps_not_in_effect": Reason(
        FAIL,
        "Steps, top-k or draft tokens are not those asked for. With a top-k of 1 upstream makes the draft tokens steps "
        "+ 1, with a warning only.",
        "Ask for what upstream makes of it, so that the arm's name is true.",
    ),
    "speculation_adapts": Reason(
        FAIL,
        "The server changes its steps while it serves, and the arm does not ask for that: no one figure belongs to it.",
        "Take --speculative-adaptive out of the server's arguments, or put it into the arm.",
    ),
    "attention_not_in_effect": Reason(
        FAIL,
        "Another attention backend is in effect than the arm asks for.",
        "Name the backend that upstream can use here, or see in its log why it fell back.",
    ),
    "parallel_not_in_effect": Reason(
        FAIL,
        "Tensor, data, pipeline or expert parallelism is not as the arm asks.",
        "Correct the arm's sizes; see the server's log for what it made of them.",
    ),
    "graphs_not_in_effect": Reason(
        FAIL,
        "Decode steps ran without a captured CUDA graph although graphs are on.",
        "See why in the server's log; a batch larger than the graphs captured, or a backend without them, is the usual reason.",
    ),
    "argument_not_in_effect": Reason(
        FAIL,
        "An argument that decides what is measured (model, dtype, quantization, ...) was resolved to another value.",
        "Ask for the value in effect, or see in the server's log why upstream changed it.",
    ),
    "wrong_all_reduce": Reason(
        FAIL,
        "The ranks add up in another way than the arm asks for: upstream fell back, with a warning only.",
        "The message has the log's words; meet what they ask for, or take the request out of the arm.",
    ),
    "variable_without_effect": Reason(
        FAIL,
        "The arm, or the shell it was launched from, sets a variable that only looks like one of the server's: nobody reads it.",
        "Write the name the message gives, or take it out of the shell.",
    ),
    "arms_differ": Reason(
        FAIL,
        "Two arms differ in more than the thing under test, so no difference between their figures can be put down to it.",
        "Make it the same in all arms, or name it in under_test.",
    ),
    "launch_differs": Reason(
        FAIL,
        "Two launches that should be the same are not: an argument, a variable, a package or a file changed in between.",
        "Leave the machine alone while a campaign runs; begin a new one.",
    ),
}
