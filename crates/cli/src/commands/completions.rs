//! `cenote completions`: shell completions from the grammar.

use clap_complete::Shell;

use crate::prelude::*;

/// Print completions for a shell.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// bash, elvish, fish, powershell or zsh.
    #[arg(value_parser = shell_name)]
    shell: String,
}

fn shell_name(text: &str) -> Result<String, String> {
    text.parse::<Shell>().map(|shell| shell.to_string())
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let shell: Shell = args.shell.parse().map_err(crate::outcome::usage)?;
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut context.program()?.grammar(), "cenote", &mut text);
    context.out(text)?;
    Ok(Outcome::Good)
}
