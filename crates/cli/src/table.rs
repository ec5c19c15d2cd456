//! The table that lists the commands of a level.

/// Defines the enum of a level's commands: for each a module with `Args` and `async fn run(&Context, Args)`. The help of a
/// command is the doc comment of its `Args`.
macro_rules! commands {
    ($(#[$meta:meta])* enum $name:ident { $($(#[$line:meta])* $variant:ident => $module:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, clap::Subcommand, serde::Serialize, serde::Deserialize)]
        pub(crate) enum $name {
            $($(#[$line])* #[allow(missing_docs)] $variant($module::Args),)*
        }

        impl $name {
            /// Runs the command.
            pub(crate) async fn run(
                self,
                context: &$crate::context::Context,
            ) -> anyhow::Result<$crate::outcome::Outcome> {
                // Boxed, so that the future is as large as the largest command's no more than once.
                match self {
                    $(Self::$variant(args) => Box::pin($module::run(context, args)).await,)*
                }
            }
        }
    };
}
pub(crate) use commands;
