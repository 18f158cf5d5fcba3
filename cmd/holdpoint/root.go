package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// program is what the commands of one execution share.
type program struct {
	in       io.Reader
	out, err io.Writer
	environ  []string
	json     bool // --json
	working  bool // the command line was understood; an error before that is a usage error
}

// newRoot builds the tree of commands.
func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use:   "holdpoint",
		Short: "The safety layer between AI workflows and the outside world",
		Long: "Holdpoint works each business event once, has the right person approve what a model proposes, sends each effect once,\n" +
			"and proves it afterwards.",
		Example: "  holdpoint init\n" +
			"  AI_ACTIONS_ENABLED=true holdpoint serve",
		Version:      buildVersion().String(),
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.ArbitraryArgs, // the group answers for a name that no command has
	}
	asGroup(root)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.SetVersionTemplate("holdpoint {{.Version}}\n")
	root.PersistentFlags().BoolVar(&p.json, "json", false, "answer as JSON")
	root.CompletionOptions.DisableDefaultCmd = false
	root.AddCommand(
		p.initCommand(), p.serveCommand(), p.demoCommand(), p.migrateCommand(), p.doctorCommand(), p.versionCommand(),
		p.policyCommand(), p.keysCommand(), p.usersCommand(), p.tenantsCommand(),
		p.runsCommand(), p.approvalsCommand(), p.effectsCommand(), p.switchCommand(), p.connectorCommand(), p.evidenceCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	describeGenerated(root)
	explainArguments(root)
	return root
}

// explainArguments makes a command with the wrong number of arguments answer how it is written.
func explainArguments(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) != nil {
				return usagef("write it as %s; see %s --help", strings.TrimSuffix(cmd.UseLine(), " [flags]"), cmd.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		explainArguments(sub)
	}
}

// group is a command that only holds others.
func group(name, short, example string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Example: example, Args: cobra.ArbitraryArgs}
	asGroup(c)
	c.AddCommand(commands...)
	return c
}

// asGroup makes a command answer a missing or unknown subcommand as a usage error.
func asGroup(c *cobra.Command) {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			cmd.SetOut(cmd.ErrOrStderr())
			if err := cmd.Help(); err != nil {
				return err
			}
			return usagef("choose one of the commands above")
		}
		return usagef("%q is not a command of %s; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
}

// do wraps what a command does, so that errors before it are known as usage errors.
func (p *program) do(work func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p.working = true
		return work(cmd.Context(), cmd, args)
	}
}

// describeGenerated gives the commands that cobra generates the examples that every command has.
func describeGenerated(root *cobra.Command) {
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Example = "  holdpoint help runs show"
			c.Run, c.RunE = nil, func(_ *cobra.Command, args []string) error {
				asked, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 {
					return usagef("there is no command %s; see holdpoint --help", strings.Join(args, " "))
				}
				return asked.Help()
			}
		case "completion":
			c.Example = "  holdpoint completion bash > /etc/bash_completion.d/holdpoint"
			c.Args = cobra.ArbitraryArgs
			asGroup(c)
			for _, shell := range c.Commands() {
				if shell.Example == "" {
					shell.Example = "  holdpoint completion " + shell.Name()
				}
			}
		}
	}
}

// examples joins example lines with the indentation that help shows.
func examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }
