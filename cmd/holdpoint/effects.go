package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

func (p *program) effectsCommand() *cobra.Command {
	return group("effects", "See what was sent, and settle what is unknown",
		examples("holdpoint effects list --state unknown", "holdpoint effects reconcile 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11"),
		p.effectsList(), p.effectsShow(), p.effectsCancel(), p.effectsReconcile(), p.effectsResolve())
}

func (p *program) effectsList() *cobra.Command {
	var q client.EffectQuery
	var state string
	c := &cobra.Command{
		Use:     "list",
		Short:   "List effects, newest first",
		Example: examples("holdpoint effects list --state unknown", "holdpoint effects list --held --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				q.State = holdpoint.EffectState(state)
				page, err := r.Effects(ctx, q)
				if err != nil {
					return err
				}
				page.Effects = list(page.Effects)
				return p.answer(page, func(w io.Writer) {
					rows := make([][]string, len(page.Effects))
					for i, x := range page.Effects {
						rows[i] = []string{x.ID, x.Workflow, x.Slot, x.Type, x.Connector, effectState(x), strconv.Itoa(x.Attempts), at(x.UpdatedAt)}
					}
					table(w, "EFFECT | WORKFLOW | SLOT | TYPE | CONNECTOR | STATE | ATTEMPTS | CHANGED", rows)
					sayMore(w, page.Next)
				})
			})
		}),
	}
	apiFlags(c)
	f := c.Flags()
	f.StringVar(&state, "state", "", "pending, sending, completed, unknown or failed")
	f.BoolVar(&q.Held, "held", false, "only pending effects under a hold")
	f.StringVar(&q.RunID, "run", "", "id of a run")
	pageFlags(c, &q.Cursor, &q.Limit)
	return c
}

func (p *program) effectsShow() *cobra.Command {
	c := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one effect with each of its attempts",
		Example: examples("holdpoint effects show 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				x, err := r.Effect(ctx, args[0])
				if err != nil {
					return err
				}
				return p.answer(x, func(w io.Writer) { sayEffect(w, x) })
			})
		}),
	}
	apiFlags(c)
	return c
}

// sayEffect shows one effect and what may be done about it.
func sayEffect(w io.Writer, x client.Effect) {
	fmt.Fprintf(w, "Effect %s of run %s\n\n", x.ID, x.RunID)
	doubt, next := "", ""
	if x.State == holdpoint.EffectPending && x.Hold == holdpoint.HoldNone {
		next = atOf(x.NextAttemptAt)
	}
	if x.PossiblyCommitted {
		doubt = "yes: the provider may have accepted an attempt"
	}
	pairs(w, "slot", x.Slot, "type", x.Type, "target", x.Target, "connector", x.Connector, "provider", x.Provider, "state", effectState(x.Effect),
		"possibly committed", doubt, "provider's id", x.ProviderID, "reference", x.Reference, "next attempt", next,
		"next look-up", atOf(x.NextLookupAt), "send by", atOf(x.ExecuteBy), "payload hash", x.PayloadHash)
	if len(x.Payload) > 0 {
		fmt.Fprintln(w, "\nPayload:")
		indented(w, x.Payload)
	}
	if len(x.AttemptLog) > 0 {
		fmt.Fprintln(w, "\nAttempts:")
		rows := make([][]string, len(x.AttemptLog))
		for i, a := range x.AttemptLog {
			status := ""
			if a.Status > 0 {
				status = strconv.Itoa(a.Status)
			}
			rows[i] = []string{"  " + strconv.Itoa(a.Number), at(a.BegunAt), string(a.Result), string(a.Phase), string(a.Class), status, a.Detail, atOf(a.SettledAt)}
		}
		table(w, "  NO | BEGUN | RESULT | PHASE | CLASS | STATUS | DETAIL | SETTLED", rows)
	}
	switch {
	case x.State == holdpoint.EffectUnknown:
		fmt.Fprintf(w, "\nNobody knows whether the provider has it; it is not sent again. Look there for the reference, or let Holdpoint look:\n"+
			"  holdpoint effects reconcile %s\nThen record what is true:\n"+
			"  holdpoint effects resolve %s --verdict sent|not_sent|abandon --reason \"…\"\n", x.ID, x.ID)
	case x.State == holdpoint.EffectPending:
		sayHold(w, x)
	}
}

// sayHold says what lifts a hold, and what ends the effect where only a new decision would.
func sayHold(w io.Writer, x client.Effect) {
	cancel := fmt.Sprintf("  holdpoint effects cancel %s --reason \"…\"\n", x.ID)
	switch x.Hold {
	case holdpoint.HoldSwitch:
		fmt.Fprintln(w, "\nIt is sent by itself when every switch that concerns it is on: holdpoint switch status")
	case holdpoint.HoldCredentials, holdpoint.HoldPermission, holdpoint.HoldQuota:
		fmt.Fprintf(w, "\nIt is held. Mend what caused it at the provider, then:\n  holdpoint connector release %s\n", x.Connector)
	case holdpoint.HoldConfiguration:
		fmt.Fprintf(w, "\nIt is held: the connector's address, certificate or secrets do not work, or it is no longer the connector that was approved.\n"+
			"Mend it, or activate the policy that was approved again, then:\n  holdpoint connector release %s\nElse end it, and let a correction be decided anew:\n%s", x.Connector, cancel)
	case holdpoint.HoldAuthority, holdpoint.HoldExpired:
		fmt.Fprintf(w, "\nIt is held: %s. End it, and let a correction be decided anew:\n%s",
			map[holdpoint.Hold]string{holdpoint.HoldAuthority: "whoever approved it may not do so any more", holdpoint.HoldExpired: "its time to be sent is over"}[x.Hold], cancel)
	}
}

func (p *program) effectsCancel() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:     "cancel ID",
		Short:   "End an effect that has not begun",
		Example: examples("holdpoint effects cancel 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11 --reason \"sent by hand\""),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.changeEffect(cmd, func(r *remote) (holdpoint.Effect, error) { return r.CancelEffect(ctx, args[0], reason) })
		}),
	}
	apiFlags(c)
	reasonFlag(c, &reason, true)
	return c
}

func (p *program) effectsReconcile() *cobra.Command {
	c := &cobra.Command{
		Use:     "reconcile ID",
		Short:   "Look an unknown effect up at its provider now; sends nothing",
		Example: examples("holdpoint effects reconcile 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.changeEffect(cmd, func(r *remote) (holdpoint.Effect, error) { return r.Reconcile(ctx, args[0]) })
		}),
	}
	apiFlags(c)
	return c
}

func (p *program) effectsResolve() *cobra.Command {
	var q client.Resolution
	var verdict string
	c := &cobra.Command{
		Use:   "resolve ID --verdict VERDICT",
		Short: "Record what is true about an unknown effect",
		Long: "Records what you found at the provider: sent (with --provider-id if you have it), not_sent (it may then be sent again), or\n" +
			"abandon (nobody will know; the effect ends).",
		Example: examples("holdpoint effects resolve 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11 --verdict sent --provider-id n-17 --reason \"the note is there\""),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			q.Verdict = holdpoint.Verdict(verdict)
			return p.changeEffect(cmd, func(r *remote) (holdpoint.Effect, error) { return r.Resolve(ctx, args[0], q) })
		}),
	}
	apiFlags(c)
	c.Flags().StringVar(&verdict, "verdict", "", "sent, not_sent or abandon")
	c.Flags().StringVar(&q.ProviderID, "provider-id", "", "the provider's own id, with sent")
	required(c, "verdict")
	reasonFlag(c, &q.Reason, true)
	return c
}

// changeEffect makes one change and says what stands.
func (p *program) changeEffect(cmd *cobra.Command, change func(*remote) (holdpoint.Effect, error)) error {
	return p.overAPI(cmd, func(r *remote) error {
		x, err := change(r)
		if err != nil {
			return err
		}
		next := ""
		if x.NextLookupAt != nil {
			next = "; the next look-up is at " + atOf(x.NextLookupAt)
		}
		return p.done(x, "Effect %s is %s%s.", x.ID, effectState(x), next)
	})
}
