"""Which programs may run."""

from __future__ import annotations

from kvflow.policy import AdmissionMemory, ProgramAdmission, ProgramView, ServingCosts, Step

COSTS = ServingCosts()
DEVICE = AdmissionMemory(device_tokens=100_000)
SHORT_STEP, LONG_STEP = 10.0, 100_000.0


def program(tokens: int = 40_000, **fields: object) -> ProgramView:
    view = ProgramView(live_tokens=tokens)
    for name, value in fields.items():
        setattr(view, name, value)
    return view


def admitted(
    *programs: ProgramView,
    memory: AdmissionMemory = DEVICE,
    prompt_tokens: float | None = None,
    step_tokens: float = SHORT_STEP,
    pause_s: float = 0.0,
) -> list[bool]:
    prompt_tokens = prompt_tokens or sum(one.live_tokens for one in programs) / len(programs)
    step = Step(prompt_tokens=prompt_tokens, generated_tokens=step_tokens, pause_s=pause_s)
    ProgramAdmission(COSTS).admit(programs, memory, step)
    return [one.admitted for one in programs]


def test_all_run_if_all_fit() -> None:
    assert admitted(*(program(20_000, waiting=True) for _ in range(5))) == [True] * 5


def test_as_many_run_as_fit() -> None:
    assert admitted(*(program(waiting=True) for _ in range(4))) == [True, True, False, False]


def test_one_that_fits_nowhere_runs_alone() -> None:
    assert admitted(program(500_000, waiting=True), program(waiting=True)) == [True, False]


def test_nobody_is_held_if_decoding_together_gains_more_than_restoring_takes() -> None:
    several_agents = 5_000
    held = admitted(*(program(waiting=True) for _ in range(4)), prompt_tokens=several_agents, step_tokens=SHORT_STEP)
    assert held == [True, True, False, False]
    run = admitted(*(program(waiting=True) for _ in range(4)), prompt_tokens=several_agents, step_tokens=LONG_STEP)
    assert run == [True] * 4


def test_programs_are_held_that_could_not_decode_together_anyway() -> None:
    held = admitted(*(program(waiting=True) for _ in range(4)), step_tokens=LONG_STEP)
    assert held == [True, True, False, False]


def test_nobody_is_held_if_loads_from_the_host_are_quick() -> None:
    memory = AdmissionMemory(device_tokens=100_000, host_tokens=200_000)
    programs = [program(waiting=True) for _ in range(4)]
    assert admitted(*programs, memory=memory, prompt_tokens=10_000, step_tokens=300) == [True] * 4


def test_a_host_tier_that_holds_little_of_all_saves_little() -> None:
    memory = AdmissionMemory(device_tokens=100_000, host_tokens=50_000)
    assert admitted(*(program(waiting=True) for _ in range(4)), memory=memory, step_tokens=300)[2:] == [False, False]


def test_what_the_host_has_to_hold_includes_fixed_prompts() -> None:
    memory = AdmissionMemory(device_tokens=100_000, host_tokens=200_000)
    programs = [sharing(str(role), 200_000, 40_000, waiting=True) for role in range(4)]
    assert admitted(*programs, memory=memory, step_tokens=300)[1:] == [False, False, False]


def test_nobody_is_held_where_those_who_run_would_often_leave_the_device_alone() -> None:
    held = admitted(*(program(waiting=True) for _ in range(4)), pause_s=0.5)
    assert held == [True, True, False, False]
    assert admitted(*(program(waiting=True) for _ in range(4)), pause_s=60.0) == [True] * 4


def test_a_prompt_needs_what_is_to_be_loaded_and_what_is_to_be_computed() -> None:
    admission = ProgramAdmission(COSTS)
    computed = admission.need_s(10_000, 8_000, 0)
    assert computed == COSTS.compute_s(8_000, 10_000)
    assert admission.need_s(10_000, 8_000, 3_000) == computed + COSTS.load_s(3_000)
    assert admission.need_s(10_000, 12_000, 0) == 0
    assert admission.need_s(10_000, 12_000, 12_000) == COSTS.load_s(10_000)


def test_the_youngest_gives_up_its_place_when_contexts_have_grown() -> None:
    assert admitted(*(program(waiting=True, admitted=True) for _ in range(3))) == [True, True, False]


def test_the_largest_gives_up_its_place_unless_it_has_waited_long_for_it() -> None:
    small, large = program(40_000, waiting=True, admitted=True), program(70_000, waiting=True, admitted=True)
    assert admitted(small, large, small) == [True, False, True]
    large = program(70_000, waiting=True, admitted=True, held_s=100.0)
    assert admitted(program(40_000, waiting=True, admitted=True, served_s=1.0), large) == [False, True]


def test_who_computes_keeps_its_place() -> None:
    old, young = program(70_000, admitted=True, waiting=True), program(70_000, admitted=True, busy=True)
    assert admitted(old, young) == [False, True]


def test_a_short_tool_keeps_the_place_and_a_long_one_does_not() -> None:
    waiting = program(70_000, waiting=True)
    at_work = program(20_000, admitted=True, busy=True)
    assert admitted(program(70_000, admitted=True, back_s=1.0), at_work, waiting) == [True, True, False]
    assert admitted(program(70_000, admitted=True, back_s=600.0), at_work, waiting) == [False, True, True]
    waiting.admitted = False
    assert admitted(program(70_000, admitted=True, back_s=None), at_work, waiting) == [False, True, True]


def test_a_tool_may_take_as_long_with_a_host_tier_that_others_would_fill() -> None:
    beside = AdmissionMemory(device_tokens=100_000, host_tokens=100_000)
    for memory in (DEVICE, beside):
        idle, waiting = program(70_000, admitted=True, back_s=20.0), program(70_000, waiting=True)
        assert admitted(idle, program(20_000, admitted=True, busy=True), waiting, memory=memory) == [True, True, False]


def test_and_longer_where_loads_take_longer_than_computing() -> None:
    slow = ServingCosts(load_token_s=1e-2)
    for host_tokens, keeps in ((0, False), (100_000, True)):
        idle, waiting = program(70_000, admitted=True, back_s=600.0), program(70_000, waiting=True)
        at_work = program(20_000, admitted=True, busy=True)
        memory = AdmissionMemory(device_tokens=100_000, host_tokens=host_tokens)
        ProgramAdmission(slow).admit([idle, at_work, waiting], memory, Step(prompt_tokens=50_000))
        assert idle.admitted == keeps


def test_the_device_does_not_idle_while_somebody_waits() -> None:
    assert admitted(program(70_000, admitted=True, back_s=1.0), program(70_000, waiting=True)) == [True, True]


def test_nor_when_the_only_one_that_asks_has_outgrown_the_room() -> None:
    alone = program(120_000, waiting=True)
    assert [admitted(alone) for _ in range(3)] == [[True]] * 3
    asks, in_a_tool = program(70_000, waiting=True, admitted=True), program(40_000, admitted=True, back_s=0.1)
    assert [admitted(asks, in_a_tool)[0] for _ in range(3)] == [True] * 3


def test_who_has_been_held_longest_for_its_size_goes_first() -> None:
    long = program(70_000, waiting=True, held_s=100.0, served_s=1000.0)
    short = program(70_000, waiting=True, held_s=100.0, served_s=50.0)
    assert admitted(long, short) == [False, True]
    patient = program(70_000, waiting=True, held_s=5000.0, served_s=1000.0)
    assert admitted(patient, program(70_000, waiting=True, held_s=100.0, served_s=50.0)) == [True, False]


def test_a_small_one_that_is_overdue_is_let_in_beyond_the_room() -> None:
    def line(tokens: int, held_s: float) -> list[bool]:
        at_work = program(99_000, admitted=True, busy=True, served_s=100.0)
        return admitted(at_work, program(tokens, waiting=True, held_s=held_s))

    assert line(10_000, held_s=50.0) == [True, False]
    assert line(10_000, held_s=500.0) == [True, True]
    assert line(20_000, held_s=500.0) == [True, False]


def test_only_so_many_small_ones_are_let_in_beyond_the_room() -> None:
    at_work = program(99_000, admitted=True, busy=True, served_s=100.0)
    small = [program(10_000, waiting=True, held_s=500.0) for _ in range(3)]
    assert admitted(at_work, *small) == [True, True, False, False]


def test_what_programs_typically_take_is_what_a_wait_is_measured_by() -> None:
    def line(program_s: float) -> list[bool]:
        views = [program(99_000, admitted=True, busy=True, served_s=1000.0), program(10_000, waiting=True, held_s=60.0)]
        ProgramAdmission(COSTS).admit(views, DEVICE, Step(prompt_tokens=50_000), program_s)
        return [one.admitted for one in views]

    assert line(program_s=0.0) == [True, False]
    assert line(program_s=20.0) == [True, True]


def long_running(**fields: object) -> ProgramView:
    return program(admitted=True, back_s=0.1, served_s=9_000.0, **fields)


def test_nobody_waits_for_programs_that_never_end() -> None:
    busy, asks_again, waits = long_running(busy=True), long_running(waiting=True), program(50_000, waiting=True)
    waits.held_s = 9_000.0
    assert admitted(busy, asks_again, waits) == [False, True, False], "as many as have to, the eldest of equal ones"
    busy.fixed_tokens = {"prompt": 1_000}
    assert admitted(busy, asks_again, waits) == [False, True, False], "what it computes is still there"
    busy.busy = False
    assert admitted(busy, asks_again, waits) == [False, True, True]


def test_nobody_waits_longer_for_them_the_longer_they_have_run() -> None:
    for served_s in (3_600.0, 86_400.0):
        residents = [program(25_000, admitted=True, busy=True, served_s=served_s) for _ in range(4)]
        newcomer = program(20_000, waiting=True, held_s=700.0)
        assert admitted(*residents, newcomer) == [False, False, True, True, False], "they make way as soon as they can"


def outgrown(**fields: float) -> list[bool]:
    """Programs that have outgrown what the host keeps, or else the device; none of them asks for anything now."""
    views = [
        program(tokens, admitted=True, back_s=0.1, served_s=served_s)
        for tokens, served_s in ((60_000, 90.0), (70_000, 50.0), (40_000, 5.0), (40_000, 60.0))
    ]
    memory = AdmissionMemory(device_tokens=100_000, host_tokens=200_000)
    step = Step(prompt_tokens=50_000, generated_tokens=300)
    ProgramAdmission(ServingCosts(**fields)).admit(views, memory, step)
    return [one.admitted for one in views]


def test_where_lost_contexts_are_computed_again_who_has_run_least_gives_up_its_place() -> None:
    assert outgrown() == [True, False, False, True]


def test_where_they_are_loaded_few_give_up_their_places() -> None:
    held = outgrown(load_token_s=1.0)
    assert held[1] is False
    assert held[2] is True, "it has run least, and is small"


def test_more_stays_free_where_lost_contexts_are_computed_again() -> None:
    at_work = [program(30_000, admitted=True, busy=True) for _ in range(3)]
    first, second = program(80_000, waiting=True), program(70_000, waiting=True)
    memory = AdmissionMemory(device_tokens=100_000, host_tokens=200_000)
    held = admitted(*at_work, first, second, memory=memory, prompt_tokens=60_000, step_tokens=300)
    assert held == [True, True, True, False, True], "170,000 of 192,000 tokens would be too many"


def test_places_are_not_taken_in_vain_nor_from_who_has_not_had_its_turn() -> None:
    def line(tokens: int, **fields: object) -> list[bool]:
        waits = program(tokens, **{"waiting": True, "held_s": 9_000.0, **fields})
        return admitted(long_running(busy=True), program(50_000, admitted=True, busy=True), waits)

    assert line(40_000) == [False, True, False]
    assert line(60_000) == [True, True, False], "there would not be room"
    assert line(40_000, held_s=700.0, served_s=90_000.0) == [True, True, False], "it has run for longer itself"
    assert line(40_000, held_s=500.0) == [True, True, False], "it has not waited as long"


def test_a_tenant_that_holds_less_keeps_its_places() -> None:
    few = long_running(busy=True, tenant="few")
    many = program(50_000, admitted=True, busy=True, served_s=100.0, tenant="many")
    assert admitted(few, many, program(waiting=True, held_s=9_000.0, tenant="many")) == [True, True, False]


def test_tenants_take_turns() -> None:
    busy = program(30_000, admitted=True, busy=True, tenant="many")
    many = [program(30_000, waiting=True, tenant="many", held_s=50.0) for _ in range(3)]
    few = program(30_000, waiting=True, tenant="few")
    assert admitted(busy, *many, few) == [True, True, False, False, True]


def test_a_tenant_that_asks_for_too_much_does_not_hold_up_the_others() -> None:
    at_work = program(50_000, admitted=True, busy=True, tenant="a")
    large = program(90_000, waiting=True, tenant="b")
    small = program(30_000, waiting=True, tenant="c")
    assert admitted(at_work, large, small) == [True, False, True]


def sharing(role: str, fixed_tokens: int, tokens: int = 5_000, **fields: object) -> ProgramView:
    return program(tokens, fixed_tokens={role: fixed_tokens}, **fields)


def test_a_fixed_prompt_counts_once_however_many_programs_share_it() -> None:
    assert admitted(*(sharing("a", 60_000, waiting=True) for _ in range(5)))[:4] == [True] * 4


def test_programs_that_bring_no_fixed_prompt_of_their_own_go_before_those_that_do() -> None:
    running, other = sharing("a", 60_000, admitted=True, busy=True), sharing("b", 60_000, waiting=True)
    assert admitted(running, other, sharing("a", 60_000, waiting=True)) == [True, False, True]


def test_a_fixed_prompt_of_a_later_step_takes_room_while_keeping_it_weighs_less_than_restoring_it() -> None:
    def two(due_s: float) -> list[bool]:
        running = sharing("later", 60_000, admitted=True, busy=True, fixed_due_s={"later": due_s})
        return admitted(running, program(waiting=True))

    restore_s = COSTS.compute_s(0, 60_000)
    assert two(due_s=restore_s) == [True, False]
    assert two(due_s=10 * restore_s) == [True, True]


def test_a_fixed_prompt_that_several_programs_will_use_is_worth_its_room_longer() -> None:
    due_s = {"later": 10 * COSTS.compute_s(0, 60_000)}
    running = [sharing("later", 60_000, 2_000, admitted=True, busy=True, fixed_due_s=due_s) for _ in range(4)]
    assert admitted(*running, program(waiting=True)) == [True] * 4 + [False]
    assert admitted(running[0], program(waiting=True)) == [True, True]


def test_fixed_prompts_that_never_fit_hold_nobody_of_their_type_back() -> None:
    assert admitted(*(sharing("a", 300_000, 2_000, waiting=True) for _ in range(8))) == [True] * 8


def test_there_must_be_room_to_grow_for_one_more_but_nobody_leaves_for_that() -> None:
    running = [program(32_000, admitted=True, busy=True) for _ in range(2)]
    late = [program(32_000, waiting=True) for _ in range(2)]
    assert admitted(*running, *late) == [True, True, False, False]
    settled = [program(32_000, waiting=True, admitted=True) for _ in range(3)]
    assert admitted(*settled, late[1]) == [True, True, True, False]


def test_others_pass_one_that_does_not_fit_until_it_is_overdue() -> None:
    def line(held_s: float) -> list[bool]:
        running = program(50_000, admitted=True, busy=True, served_s=10.0)
        large = program(60_000, waiting=True, held_s=held_s, served_s=10.0)
        small = program(20_000, waiting=True, served_s=10.0)
        return admitted(running, large, small)

    assert line(held_s=20.0) == [True, False, True]
    assert line(held_s=200.0) == [True, False, False]


def test_one_that_is_overdue_and_fits_nowhere_does_not_have_all_wait_until_the_room_is_empty() -> None:
    running = program(50_000, admitted=True, busy=True, served_s=10.0)
    huge = [program(150_000, waiting=True, held_s=200.0, served_s=10.0) for _ in range(2)]
    small = program(20_000, waiting=True, served_s=10.0)
    assert admitted(running, *huge, small) == [True, True, False, False]
    for _ in range(5):  # until there is memory for its request
        assert admitted(running, *huge, small) == [True, True, False, False]
    running.busy, running.waiting = False, True
    assert admitted(running, *huge, small) == [False, True, False, False]


def test_one_that_fits_nowhere_leaves_its_place_to_others_once_it_has_had_its_turn() -> None:
    huge = program(150_000, admitted=True, waiting=True, held_s=20.0, served_s=30.0)
    small = [program(30_000, waiting=True, held_s=20.0) for _ in range(2)]
    assert admitted(huge, *small) == [False, True, True]
