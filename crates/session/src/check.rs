//! Whether a plan can be carried out at all, and which descriptors and objects it names.

use crate::plan::{End, FdIndex, FileOp, Namespace, Plan, Source, Step};

/// Highest descriptor number a program may be given.
const MAX_TARGET: i32 = 1023;

/// Every descriptor that the plan needs in the child.
pub(crate) fn indices(plan: &Plan) -> impl Iterator<Item = FdIndex> + '_ {
    let mut all = Vec::new();
    for step in &plan.steps {
        step_indices(step, &mut all);
    }
    match &plan.end {
        End::Exec(exec) => {
            all.extend(exec.file);
            all.extend(exec.fds.iter().map(|(index, _)| *index));
        }
        End::File(
            FileOp::Read { output, .. }
            | FileOp::List { output, .. }
            | FileOp::Watch { output, .. }
            | FileOp::Pack { output, .. },
        ) => all.push(*output),
        End::File(FileOp::Write { input, .. } | FileOp::Unpack { input, .. }) => all.push(*input),
        End::File(FileOp::Call(_)) => {}
    }
    all.into_iter()
}

fn step_indices(step: &Step, all: &mut Vec<FdIndex>) {
    match step {
        Step::JoinCgroups(files) => all.extend(files),
        Step::SetNs { fd, .. } => all.push(*fd),
        Step::MountTree(tree) => {
            all.push(tree.root);
            all.extend(tree.mounts.iter().filter_map(|mount| match mount.source {
                Source::Detached(index) => Some(index),
                _ => None,
            }));
        }
        _ => {}
    }
}

/// The objects whose processes the plan enters, in any way.
pub fn objects(plan: &Plan) -> impl Iterator<Item = &str> {
    let steps = plan.steps.iter().filter_map(|step| match step {
        Step::Enter { object_id, .. } => Some(object_id.as_str()),
        _ => None,
    });
    plan.clone.enter.as_deref().into_iter().chain(steps)
}

/// The `ResolveUser` of a plan: host ID of the sandbox's 0, and the descriptors to be given away.
#[must_use]
pub fn resolving(plan: &Plan) -> Option<(u32, &[FdIndex])> {
    plan.steps.iter().find_map(|step| match step {
        Step::ResolveUser { start, owned, .. } => Some((*start, owned.as_slice())),
        _ => None,
    })
}

/// Refuse what no child could carry out.
///
/// # Errors
/// One sentence for people.
pub fn check(plan: &Plan, descriptors: usize) -> Result<(), String> {
    let owned = resolving(plan).map_or(&[][..], |(_, owned)| owned);
    let named = indices(plan)
        .chain(plan.clone.cgroup)
        .chain(plan.clone.net)
        .chain(owned.iter().copied());
    if let Some(index) = named
        .into_iter()
        .find(|index| usize::from(*index) >= descriptors)
    {
        return Err(format!(
            "descriptor {index} of the plan did not come with it"
        ));
    }
    check_clone(plan)?;
    check_steps(plan)?;
    match &plan.end {
        End::Exec(exec) => {
            if exec.file.is_none() && exec.programs.is_empty() {
                return Err("the plan names no program".to_owned());
            }
            let good = |target: &i32| (0..=MAX_TARGET).contains(target);
            if !exec.fds.iter().all(|(_, target)| good(target)) {
                return Err(format!("descriptors of a program are 0 to {MAX_TARGET}"));
            }
            let mut targets: Vec<i32> = exec.fds.iter().map(|(_, target)| *target).collect();
            targets.sort_unstable();
            if targets.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err("two descriptors have one number in the program".to_owned());
            }
            Ok(())
        }
        End::File(_) => Ok(()),
    }
}

fn check_clone(plan: &Plan) -> Result<(), String> {
    let clone = &plan.clone;
    let user = clone.new.contains(&Namespace::User);
    if clone.new.contains(&Namespace::Cgroup) {
        return Err(
            "the cgroup namespace is made by a step, after the groups are joined".to_owned(),
        );
    }
    if user != clone.ids.is_some() {
        return Err("a new user namespace and an ID range go together".to_owned());
    }
    if clone.net.is_some() && clone.new.contains(&Namespace::Net) {
        return Err("a network namespace is new or given, not both".to_owned());
    }
    if clone.enter.is_some() && clone.new.contains(&Namespace::Pid) {
        return Err("a PID namespace is new or entered, not both".to_owned());
    }
    let fits = |start: u32, count: u32| count > 0 && start.checked_add(count).is_some();
    match clone.ids {
        Some(ids) if ids.start == 0 || !fits(ids.start, ids.count) => {
            Err("an ID range starts above 0 and ends within 32 bits".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_steps(plan: &Plan) -> Result<(), String> {
    let resolves = |step: &&Step| matches!(step, Step::ResolveUser { .. });
    if plan.steps.iter().filter(resolves).count() > 1 {
        return Err("a plan resolves one user".to_owned());
    }
    let opens = |step: &&Step| matches!(step, Step::OpenPty { .. });
    match plan.steps.iter().filter(opens).count() {
        0 => {}
        1 => check_terminal(plan)?,
        _ => return Err("a session has one terminal".to_owned()),
    }
    for step in &plan.steps {
        match step {
            Step::Enter { kinds, .. } if kinds.contains(&Namespace::Pid) => {
                return Err("the PID namespace is entered by the clone".to_owned());
            }
            Step::ResolveUser { start, .. }
                if *start == 0 || start.checked_add(crate::passwd::MAX_ID).is_none() =>
            {
                return Err("an ID range starts above 0 and ends within 32 bits".to_owned());
            }
            Step::Chdir { path, .. } if !path.starts_with(b"/") => {
                return Err("a working directory is absolute".to_owned());
            }
            Step::Processors(0) => return Err("a program runs on a processor".to_owned()),
            Step::Seccomp { program, .. } if program.is_empty() || program.len() % 8 != 0 => {
                return Err("a seccomp program is a row of 8-byte instructions".to_owned());
            }
            Step::Seccomp { listen: true, .. } if matches!(plan.end, End::File(_)) => {
                return Err("a file operation is not listened to".to_owned());
            }
            _ => {}
        }
    }
    Ok(())
}

/// A terminal takes the place of the three standard descriptors.
fn check_terminal(plan: &Plan) -> Result<(), String> {
    match &plan.end {
        End::Exec(exec) if exec.fds.iter().all(|(_, target)| *target > 2) => Ok(()),
        End::Exec(_) => {
            Err("a terminal is the program's 0, 1 and 2, and nothing else is".to_owned())
        }
        End::File(_) => Err("a file operation has no terminal".to_owned()),
    }
}
