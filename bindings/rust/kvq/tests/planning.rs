//! Plans: against all that there are, and as files.
#![cfg(feature = "experimental")]
mod common;
use common::*;
use kvq::{
    plan_rates, Cache, CacheOptions, Plan, PlanContent, PlanCosts, PlanFusion, PlanGoal, PlanGroup, PlanProblem,
    Policy, Status,
};

fn least_loss(choices: &[Vec<PlanCosts>], bytes: f64, seconds: f64) -> f64 {
    if bytes < 0.0 || seconds < 0.0 {
        return f64::INFINITY;
    }
    let Some((first, rest)) = choices.split_first() else { return 0.0 };
    first
        .iter()
        .map(|it| it.loss + least_loss(rest, bytes - it.bytes, seconds - it.seconds))
        .fold(f64::INFINITY, f64::min)
}

#[test]
fn a_solved_plan_loses_as_little_as_any() {
    let context = context();
    let (mut solved, mut refused) = (0, 0);
    for round in 0..60 {
        // Whole numbers, which sums keep exactly.
        let drawn = numbers(4 * 4 * 3, round);
        let whole = |i: usize| f64::from((drawn[i] + 1.0) * 15.0).floor() + 1.0;
        let option = |i: usize| PlanCosts { bytes: whole(i), seconds: whole(i + 1), loss: whole(i + 2) };
        let choices: Vec<Vec<_>> =
            (0..4).map(|i| (0..2 + (i + round as usize) % 3).map(|j| option(12 * i + 3 * j)).collect()).collect();
        let limit = 20.0 + f64::from(round);
        let problem = PlanProblem::new().max_bytes(limit).max_seconds(45.0).tolerance(0.0);
        let least = least_loss(&choices, limit, 45.0);
        if least.is_infinite() {
            assert_fails(problem.solve(&context, &choices), Status::Limit, &["no plan"]);
            refused += 1;
            continue;
        }
        let found = problem.solve(&context, &choices).unwrap();
        assert_eq!(found.costs.loss, least);
        assert!(found.bound <= least);
        let bytes: f64 = found.chosen.iter().zip(&choices).map(|(&option, choice)| choice[option].bytes).sum();
        assert_eq!(found.costs.bytes, bytes);
        solved += 1;
    }
    assert!(solved > 20 && refused > 5, "{solved} plans and {refused} refusals are too few to show something");

    let sizes = [[PlanCosts { bytes: 3.0, ..PlanCosts::default() }, PlanCosts { bytes: 1.0, loss: 2.0, seconds: 0.0 }]];
    let smallest = PlanProblem::new().goal(PlanGoal::Bytes).max_loss(5.0).solve(&context, &sizes).unwrap();
    assert_eq!(smallest.chosen, [1]);
    let wrong = [[PlanCosts { bytes: f64::NAN, ..PlanCosts::default() }]];
    assert_fails(PlanProblem::new().solve(&context, &wrong), Status::Argument, &["bytes[0] is"]);
    let none: [Vec<PlanCosts>; 0] = [];
    assert_fails(PlanProblem::new().solve(&context, &none), Status::Argument, &["n_choices is 0"]);
}

#[test]
fn rates_take_all_bits_and_more_where_more_is_lost() {
    let (bits, loss) = plan_rates(&[100.0, 300.0], &[16.0, 3.0], 0.0, 1200.0).unwrap();
    assert!((100.0 * bits[0] + 300.0 * bits[1] - 1200.0).abs() < 1e-6);
    assert!((bits[0] - bits[1] - 2.0).abs() < 1e-9);
    let expected = 16.0 * (-2.0 * bits[0]).exp2() + 3.0 * (-2.0 * bits[1]).exp2();
    assert!((loss - expected).abs() < 1e-12);
    assert_fails(plan_rates(&[1.0, 2.0], &[1.0], 0.0, 9.0), Status::Argument, &["sensitivities"]);
    assert_fails(plan_rates(&[], &[], 0.0, 9.0), Status::Argument, &["n is 0"]);
}

#[test]
fn groups_of_matrices_are_faster_together() {
    let context = context();
    let (bytes, loss) = ([[8.0, 4.0], [8.0, 4.0]], [[0.0, 1.0], [0.0, 2.0]]);
    let group = |members: &[usize], seconds: [f64; 2]| PlanGroup { members: members.into(), seconds: seconds.into() };
    let groups = [group(&[0], [3.0, 2.0]), group(&[1], [3.0, 2.0]), group(&[0, 1], [4.0, 3.0])];
    let fusion = PlanFusion::new(&context, &bytes, &loss, &groups).unwrap();
    let groupings = fusion.groupings().unwrap();
    // Together with one scheme, or only the first matrix with the smaller one: the second saves as much and loses more.
    let found: Vec<_> = groupings.iter().map(|it| (it.loss, it.seconds)).collect();
    assert_eq!(found, [(0.0, 4.0), (1.0, 5.0), (3.0, 3.0)]);
    assert_eq!(groupings[0].groups, [3, 3, 0, 0]);
    assert_fails(PlanFusion::new(&context, &bytes, &loss[..1], &groups), Status::Argument, &["loss"]);
    assert_fails(PlanFusion::new(&context, &bytes, &loss, &groups[..1]), Status::Argument, &["member 1"]);
    let beyond = [group(&[2], [1.0, 1.0])];
    assert_fails(PlanFusion::new(&context, &bytes, &loss, &beyond), Status::Argument, &["groups[0] has member 2"]);
}

#[test]
fn a_plan_is_a_file_and_a_cache_is_made_from_it() {
    let context = context();
    let policy = Policy::load(&context, "int4").unwrap();
    let content = PlanContent::new().matrix("up", "tcx-3").matrix("größer", "nuq-4").policy(&policy);
    let content = content.bytes(1000.0).loss(0.25).note("by hand");
    let yaml = Plan::new(&context, &content).unwrap().save().unwrap();
    drop(policy);
    let plan = Plan::load(&context, &yaml).unwrap();
    assert_eq!(plan.save().unwrap(), yaml);
    let info = plan.describe().unwrap();
    assert_eq!((info.n_matrices, info.has_policy, info.bytes, info.loss), (2, true, 1000.0, 0.25));
    assert_eq!(info.note, "by hand");
    let matrices = plan.matrices().unwrap();
    assert_eq!((matrices[1].name.as_str(), matrices[1].scheme.as_str()), ("größer", "nuq-4"));
    assert_eq!(plan.scheme("up").as_deref(), Some("tcx-3"));
    assert_eq!((plan.scheme("gate"), plan.scheme("a\0b")), (None, None));
    let policy = plan.policy().unwrap();
    drop(plan);
    let cache = Cache::new(&context, CacheOptions::new(1, 2, 1, 16), &policy).unwrap();
    assert_eq!(cache.describe_layer(0).unwrap().formats, "int4");

    assert_fails(Plan::load(&context, &yaml.replace("tcx-3", "tcx-9")), Status::Format, &["tcx-9", "line"]);
    assert_fails(Plan::load(&context, ""), Status::Format, &["empty"]);
    let twice = PlanContent::new().matrix("a", "nuq-4").matrix("a", "nuq-4");
    assert_fails(Plan::new(&context, &twice), Status::Argument, &["twice"]);
    assert_fails(Plan::new(&context, &PlanContent::new().matrix("a\0", "nuq-4")), Status::Argument, &["names", "NUL"]);
    let empty = Plan::new(&context, &PlanContent::new()).unwrap();
    assert_fails(empty.policy(), Status::State, &["nothing of caches"]);
}
