package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
)

func (p *program) policyCommand() *cobra.Command {
	return group("policy", "Check, activate and show the policy", examples("holdpoint policy check", "holdpoint policy activate --local"),
		p.policyCheck(), p.policyMatrix(), p.policyActivate(), p.policyShow())
}

// readPolicy reads a policy file with the schema files that it names. A schema file that is not there is left out, so that
// the check tells where it is named.
func readPolicy(path string) (document []byte, files map[string][]byte, err error) {
	if document, err = os.ReadFile(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, usagef("there is no policy file at %s; name it, or say with HOLDPOINT_CONFIG where it is", path)
		}
		return nil, nil, usagef("the policy file %s cannot be read; correct its permissions", path)
	}
	files = map[string][]byte{}
	names, err := policy.Files(document)
	if err != nil {
		return document, files, nil // the check says what is wrong, with its line
	}
	for _, name := range names {
		full := filepath.Join(filepath.Dir(path), filepath.FromSlash(name))
		body, err := os.ReadFile(full)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, usagef("the schema file %s cannot be read; correct its permissions", full)
		}
		files[name] = body
	}
	return document, files, nil
}

// checked is the answer of a check.
type checked struct {
	File     string           `json:"file"`
	Hash     string           `json:"hash,omitempty"`
	Findings []client.Finding `json:"findings"`
}

// say writes each finding the way compilers do, and the verdict.
func (c checked) say(w io.Writer) {
	errs := 0
	for _, f := range c.Findings {
		fmt.Fprintf(w, "%s:%s\n", c.File, oneLine(policy.Finding(f).String()))
		if f.Severity == policy.SeverityError {
			errs++
		}
	}
	if errs > 0 {
		fmt.Fprintf(w, "%s: %s to correct\n", c.File, count(errs, "error"))
		return
	}
	fmt.Fprintf(w, "%s: correct (%s)\n", c.File, short(c.Hash))
}

func (p *program) policyCheck() *cobra.Command {
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Say what is wrong with a policy file, with line and column",
		Long:  "Checks the policy file and the schema files that it names, and changes nothing. Ends with 1 if anything is an error.",
		Example: examples("holdpoint policy check",
			"holdpoint policy check examples/refund/holdpoint.yaml --json"),
		Args: cobra.MaximumNArgs(1),
		RunE: p.do(func(_ context.Context, cmd *cobra.Command, args []string) error {
			s, err := p.settings(cmd)
			if err != nil {
				return err
			}
			out := checked{File: s.Config, Findings: []client.Finding{}}
			if len(args) > 0 {
				out.File = args[0]
			}
			document, files, err := readPolicy(out.File)
			if err != nil {
				return err
			}
			parsed, findings := policy.Parse(document, files, policy.Options{CheckContract: func(name string, schema []byte) error {
				_, err := payload.CompileContract(name, schema)
				return err
			}})
			out.Findings = findingList(findings)
			if parsed != nil {
				out.Hash = parsed.Hash
			}
			if err := p.answer(out, out.say); err != nil {
				return err
			}
			if parsed == nil {
				return errFindings
			}
			return nil
		}),
	}
	configFlag(c)
	return c
}

// matrixLine is one row of the failure matrix as people and programs read it.
type matrixLine struct {
	Ref               string                 `json:"ref"`
	Class             holdpoint.FailureClass `json:"class"`
	Detected          string                 `json:"detected"`
	PossiblyCommitted bool                   `json:"possibly_committed"`
	Retry             bool                   `json:"retry"`
	Attempts          int                    `json:"attempts"`
	Backoff           string                 `json:"backoff"`
	Budget            holdpoint.Duration     `json:"budget"`
	SpendsAttempt     bool                   `json:"spends_attempt"`
	Concurrency       policy.Concurrency     `json:"concurrency"`
	Hold              holdpoint.Hold         `json:"hold"`
	HoldsConnector    bool                   `json:"hold_connector"`
	Effect            holdpoint.EffectState  `json:"effect_state"`
	Run               holdpoint.RunState     `json:"run_state"`
	RunReason         holdpoint.Reason       `json:"run_reason"`
	Acts              string                 `json:"acts"`
}

func matrixLines() []matrixLine {
	lines := make([]matrixLine, len(policy.Matrix))
	for i, r := range policy.Matrix {
		lines[i] = matrixLine{r.Ref, r.Class, r.Detected, r.PossiblyCommitted, r.Retry, r.Attempts, backoff(r), holdpoint.Duration(r.Budget),
			r.SpendsAttempt, r.Concurrency, r.Hold, r.HoldConnector, r.EffectState, r.RunState, r.RunReason, r.Acts}
	}
	return lines
}

// backoff writes a row's waits: a range that doubles, or a schedule.
func backoff(r policy.MatrixRow) string {
	if len(r.Schedule) > 0 {
		text := ""
		for _, d := range r.Schedule {
			text += "," + brief(d)
		}
		return text[1:]
	}
	if r.BackoffMax == 0 {
		return ""
	}
	return brief(r.BackoffMin) + ".." + brief(r.BackoffMax)
}

// brief writes a duration without units that are zero, 30d or 5m instead of 720h0m0s or 5m0s; nothing for none.
func brief(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return ""
	case d%day == 0:
		return strconv.Itoa(int(d/day)) + "d"
	case d%time.Hour == 0:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	case d%time.Minute == 0:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	}
	return d.String()
}

func (p *program) policyMatrix() *cobra.Command {
	return &cobra.Command{
		Use:   "matrix",
		Short: "Print the failure matrix: what each class of failure means and what is done",
		Long: "Prints each failure class: whether the provider may have accepted the write, whether and how it is tried again, what becomes\n" +
			"of the effect or of the run that reports it, and who acts. Where the write may have been accepted, a retry needs a proof.\n" +
			"The policy's own budgets cap every row.",
		Example: examples("holdpoint policy matrix", "holdpoint policy matrix --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(context.Context, *cobra.Command, []string) error {
			lines := matrixLines()
			return p.answer(lines, func(w io.Writer) {
				rows := make([][]string, len(lines))
				for i, l := range lines {
					hold := string(l.Hold)
					if l.HoldsConnector {
						hold += " (connector)"
					}
					attempts := ""
					if l.Attempts > 0 {
						attempts = strconv.Itoa(l.Attempts)
					}
					rows[i] = []string{l.Ref, string(l.Class), yes(l.PossiblyCommitted), yes(l.Retry), attempts, l.Backoff, brief(time.Duration(l.Budget)),
						string(l.Concurrency), hold, string(l.Effect), string(l.Run), l.Acts}
				}
				table(w, "REF | CLASS | MAY BE SENT | RETRY | TIMES | BACKOFF | BUDGET | CONCURRENCY | HOLD | EFFECT | RUN | WHO ACTS", rows)
			})
		}),
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// activated is the answer of an activation.
type activated struct {
	Hash     string           `json:"hash"`
	Previous string           `json:"previous,omitempty"`
	Changed  bool             `json:"changed"`
	Findings []client.Finding `json:"findings"`
}

func (p *program) policyActivate() *cobra.Command {
	c := &cobra.Command{
		Use:   "activate",
		Short: "Store the policy file with its schemas and put it in force",
		Long: "Stores the file HOLDPOINT_CONFIG with the schema files that it names and activates it in one step, without a restart. If\n" +
			"somebody else activates a policy at the same time, nothing is changed and the command ends with 4.",
		Example: examples("holdpoint policy activate", "holdpoint policy activate --local --config holdpoint.yaml"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			s, err := p.settings(cmd)
			if err != nil {
				return err
			}
			document, files, err := readPolicy(s.Config)
			if err != nil {
				return err
			}
			texts := map[string]string{}
			for name, body := range files {
				texts[name] = string(body)
			}
			return p.withDesk(ctx, cmd, func(d desk) error { return p.activate(ctx, s.Config, string(document), texts, d) })
		}),
	}
	eitherFlags(c)
	configFlag(c)
	return c
}

// activate moves the active pointer from what was active when the command began.
func (p *program) activate(ctx context.Context, file, document string, files map[string]string, d desk) error {
	previous, err := d.activePolicy(ctx)
	if err != nil {
		return err
	}
	stored, err := d.putPolicy(ctx, document, files)
	if findings, ok := findingsOf(err); ok {
		out := checked{File: file, Findings: findings}
		if err := p.answer(out, out.say); err != nil {
			return err
		}
		return errFindings
	}
	if err != nil {
		return err
	}
	out := activated{stored.Hash, previous, stored.Hash != previous, list(stored.Findings)}
	if out.Changed {
		if err := d.activatePolicy(ctx, stored.Hash, previous); err != nil {
			return err
		}
	}
	return p.answer(out, func(w io.Writer) {
		for _, f := range out.Findings {
			fmt.Fprintf(w, "%s:%s\n", file, oneLine(policy.Finding(f).String()))
		}
		switch {
		case !out.Changed:
			fmt.Fprintf(w, "Policy %s is active already.\n", short(out.Hash))
		case previous == "":
			fmt.Fprintf(w, "Policy %s is active.\n", short(out.Hash))
		default:
			fmt.Fprintf(w, "Policy %s is active in place of %s.\n", short(out.Hash), short(previous))
		}
	})
}

func (p *program) policyShow() *cobra.Command {
	c := &cobra.Command{
		Use:   "show [HASH]",
		Short: "Show a stored policy; without a hash the active one",
		Long:  "Prints the document of a stored policy as it was proposed. With --json the schema files that it names stand beside it.",
		Example: examples("holdpoint policy show > active.yaml",
			"holdpoint policy show 5d41402abc4b2a76b9719d911017c592… --json"),
		Args: cobra.MaximumNArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				hash := "active"
				if len(args) > 0 {
					hash = args[0]
				}
				stored, err := r.Policy(ctx, hash)
				if err != nil {
					return err
				}
				return p.answer(stored, func(w io.Writer) { fmt.Fprint(w, stored.Document) })
			})
		}),
	}
	apiFlags(c)
	return c
}
