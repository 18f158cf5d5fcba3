package main

import (
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

func (p *program) runsCommand() *cobra.Command {
	return group("runs", "Find runs, see what stands about one, correct and end them",
		examples("holdpoint runs list --state awaiting_human", "holdpoint runs show order-4711"),
		p.runsList(), p.runsShow(), p.runsReplace(), p.runsCancel(), p.runsResolveStep())
}

// overAPI speaks to the server.
func (p *program) overAPI(cmd *cobra.Command, work func(*remote) error) error {
	r, err := p.remote(cmd)
	if err != nil {
		return err
	}
	return r.explain(work(r))
}

// pageFlags adds the flags of lists that come in pages.
func pageFlags(c *cobra.Command, cursor *string, limit *int) {
	c.Flags().StringVar(cursor, "cursor", "", "go on where a page ended")
	c.Flags().IntVar(limit, "limit", 0, "entries on a page, 1 to 500 (default 50)")
}

// reasonFlag adds --reason, which is kept with the evidence.
func reasonFlag(c *cobra.Command, reason *string, needed bool) {
	c.Flags().StringVar(reason, "reason", "", "why; it is kept with the evidence")
	if needed {
		required(c, "reason")
	}
}

func (p *program) runsList() *cobra.Command {
	var q client.RunQuery
	var state string
	c := &cobra.Command{
		Use:     "list",
		Short:   "List runs, newest first",
		Example: examples("holdpoint runs list", "holdpoint runs list --workflow ticket-reply --state failed_terminal --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				q.State = holdpoint.RunState(state)
				page, err := r.Runs(ctx, q)
				if err != nil {
					return err
				}
				page.Runs = list(page.Runs)
				return p.answer(page, func(w io.Writer) {
					rows := make([][]string, len(page.Runs))
					for i, x := range page.Runs {
						rows[i] = []string{x.ID, x.Workflow, x.Key, withReason(string(x.State), string(x.Reason)), at(x.CreatedAt), at(x.UpdatedAt)}
					}
					table(w, "RUN | WORKFLOW | KEY | STATE | CREATED | CHANGED", rows)
					sayMore(w, page.Next)
				})
			})
		}),
	}
	apiFlags(c)
	f := c.Flags()
	f.StringVar(&q.Key, "key", "", "idempotency key")
	f.StringVar(&q.Workflow, "workflow", "", "workflow")
	f.StringVar(&q.Record, "record", "", "record of the operation")
	f.StringVar(&state, "state", "", "processing, awaiting_human, approved, completed, failed_retryable or failed_terminal")
	pageFlags(c, &q.Cursor, &q.Limit)
	return c
}

func (p *program) runsShow() *cobra.Command {
	var workflow string
	c := &cobra.Command{
		Use:   "show KEY|ID",
		Short: "Answer the four questions about one run, and what may safely be done now",
		Long: "Says whether the event was processed, whether anything was sent, who approved, which model drafted, what is uncertain, and\n" +
			"what may safely be done now. With --json it gives everything that hangs on the run, with content for those who may see it.",
		Example: examples("holdpoint runs show order-4711", "holdpoint runs show 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11 --json"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				v, err := r.find(ctx, args[0], workflow)
				if err != nil {
					return err
				}
				return p.answer(v, func(w io.Writer) { sayRun(w, v) })
			})
		}),
	}
	apiFlags(c)
	c.Flags().StringVar(&workflow, "workflow", "", "workflow, where several have a run of this key")
	return c
}

func (p *program) runsReplace() *cobra.Command {
	var q client.ReplaceRequest
	var op holdpoint.Operation
	var body string
	c := &cobra.Command{
		Use:   "replace KEY|ID",
		Short: "Link a correction, under its own upstream-issued key, to a run",
		Long: "Makes a new run that corrects another one, with the key that the upstream system gave the correction: --key, or --source,\n" +
			"--record, --action and --revision. A key that is made up from the old one is refused. The new run passes a fresh gate.",
		Example: examples("holdpoint runs replace 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11 --key order-4712 --payload event.json --reason \"wrong amount\"",
			"holdpoint runs replace order-4711 --source shop --record 4711 --action refund --revision 2 --payload - --reason \"wrong amount\""),
		Args: cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			payload, err := p.readJSON(body)
			if err != nil {
				return err
			}
			q.Payload = payload
			if op != (holdpoint.Operation{}) {
				q.Operation = &op
			}
			return p.overAPI(cmd, func(r *remote) error {
				old, err := r.find(ctx, args[0], "")
				if err != nil {
					return err
				}
				out, err := r.Replace(ctx, old.ID, q)
				if err != nil {
					return err
				}
				verb := "is linked as"
				if out.Created {
					verb = "was made as"
				}
				return p.done(out, "Run %s %s the correction of run %s; any execution can claim it under its key.", out.Run.ID, verb, out.Replaced.ID)
			})
		}),
	}
	apiFlags(c)
	f := c.Flags()
	f.StringVar(&q.Key, "key", "", "the correction's own key")
	f.StringVar(&op.Source, "source", "", "operation: system it comes from")
	f.StringVar(&op.Record, "record", "", "operation: record it is about")
	f.StringVar(&op.Action, "action", "", "operation: what is done")
	f.StringVar(&op.Revision, "revision", "", "operation: revision of the record")
	f.StringVar(&body, "payload", "", "file with the corrected event as JSON; - reads standard input")
	f.StringVar(&q.Initiator, "initiator", "", "who started the operation, where the workflow asks for it")
	required(c, "payload")
	reasonFlag(c, &q.Reason, true)
	return c
}

// maxInput bounds what is read from a file or standard input; the server's own limit is lower.
const maxInput = 16 << 20

// readJSON reads a JSON value from a file, or from standard input for "-".
func (p *program) readJSON(path string) (json.RawMessage, error) {
	in := p.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, usagef("%s cannot be read; name a file with JSON", path)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxInput))
	if err != nil || !json.Valid(b) {
		return nil, usagef("%s does not hold one JSON value; correct it", path)
	}
	return b, nil
}

func (p *program) runsCancel() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:     "cancel KEY|ID",
		Short:   "End a run that waits; nothing that has not begun is sent",
		Example: examples("holdpoint runs cancel order-4711 --reason \"the customer called it off\""),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				v, err := r.find(ctx, args[0], "")
				if err != nil {
					return err
				}
				run, err := r.CancelRun(ctx, v.ID, reason)
				if err != nil {
					return err
				}
				return p.done(run, "Run %s is %s.", run.ID, withReason(string(run.State), string(run.Reason)))
			})
		}),
	}
	apiFlags(c)
	reasonFlag(c, &reason, true)
	return c
}

func (p *program) runsResolveStep() *cobra.Command {
	var q client.StepResolution
	var result string
	c := &cobra.Command{
		Use:   "resolve-step KEY|ID STEP",
		Short: "Record what became of an uncertain step",
		Long: "Records whether the side effect of a step happened, of which nobody knows. Find out first. A step that was done never runs\n" +
			"again and answers the result that you give; one that was not done may run again.",
		Example: examples("holdpoint runs resolve-step order-4711 export --verdict done --result '{\"file\": 12}' --reason \"the file is there\""),
		Args:    cobra.ExactArgs(2),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			if result != "" {
				if !json.Valid([]byte(result)) {
					return usagef("--result is not JSON; correct it")
				}
				q.Result = json.RawMessage(result)
			}
			return p.overAPI(cmd, func(r *remote) error {
				v, err := r.find(ctx, args[0], "")
				if err != nil {
					return err
				}
				step, err := r.ResolveStep(ctx, v.ID, args[1], q)
				if err != nil {
					return err
				}
				return p.done(step, "Step %s is %s.", step.Name, step.State)
			})
		}),
	}
	apiFlags(c)
	c.Flags().StringVar(&q.Verdict, "verdict", "", "done or not_done")
	c.Flags().StringVar(&result, "result", "", "result as JSON, with done")
	required(c, "verdict")
	reasonFlag(c, &q.Reason, true)
	return c
}
