package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

func (p *program) approvalsCommand() *cobra.Command {
	return group("approvals", "See what waits for people, and decide",
		examples("holdpoint approvals list", "holdpoint approvals show 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11"),
		p.approvalsList(), p.approvalsShow(),
		p.approvalsDecide("approve", "Approve exactly what you saw, named by its digest", holdpoint.DecisionApprove),
		p.approvalsDecide("reject", "Reject: the run ends and nothing is sent", holdpoint.DecisionReject),
		p.approvalsDecide("send-back", "Send back: the workflow drafts again", holdpoint.DecisionSendBack),
		p.approvalsWithdraw())
}

func (p *program) approvalsList() *cobra.Command {
	var state, cursor string
	var limit int
	c := &cobra.Command{
		Use:     "list",
		Short:   "List approvals, those due next first",
		Example: examples("holdpoint approvals list", "holdpoint approvals list --state expired --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				page, err := r.Approvals(ctx, holdpoint.ApprovalState(state), cursor, limit)
				if err != nil {
					return err
				}
				page.Approvals = list(page.Approvals)
				return p.answer(page, func(w io.Writer) {
					rows := make([][]string, len(page.Approvals))
					for i, a := range page.Approvals {
						rows[i] = []string{a.ID, a.Workflow, string(a.State), strings.Join(a.Roles, ","), at(a.ApproveBy), short(a.Digest)}
					}
					table(w, "APPROVAL | WORKFLOW | STATE | ROLES | DECIDE BY | DIGEST", rows)
					sayMore(w, page.Next)
				})
			})
		}),
	}
	apiFlags(c)
	c.Flags().StringVar(&state, "state", string(holdpoint.ApprovalPending), "pending, approved, rejected, sent_back, expired, withdrawn or invalidated")
	pageFlags(c, &cursor, &limit)
	return c
}

func (p *program) approvalsShow() *cobra.Command {
	c := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one approval: exactly what would be sent, with its digest",
		Example: examples("holdpoint approvals show 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				card, err := r.Approval(ctx, args[0])
				if err != nil {
					return err
				}
				return p.answer(card, func(w io.Writer) { sayCard(w, card) })
			})
		}),
	}
	apiFlags(c)
	return c
}

// digestLength is the length of a digest: SHA-256 in hexadecimal.
const digestLength = 64

// approvalsDecide makes the commands approve, reject and send-back.
func (p *program) approvalsDecide(name, about string, decision holdpoint.Decision) *cobra.Command {
	q := client.DecisionRequest{Decision: decision}
	example := "holdpoint approvals " + name + " 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11 --digest 9f86d081884c7d65…"
	if decision != holdpoint.DecisionApprove {
		example += " --reason \"the customer is not addressed by name\""
	}
	c := &cobra.Command{
		Use:     name + " ID --digest DIGEST",
		Short:   about,
		Long:    about + ".\nThe digest states what you saw: if the draft has changed since, nothing is decided and the command ends with 4.",
		Example: examples(example),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				if len(q.Digest) != digestLength {
					return usagef("--digest takes all %d characters of the digest, as holdpoint approvals show %s prints it", digestLength, args[0])
				}
				out, err := r.Decide(ctx, args[0], q)
				if err != nil {
					return err
				}
				effects := ""
				if len(out.Effects) > 0 {
					effects = " with " + count(len(out.Effects), "effect")
				}
				return p.done(out, "Approval %s is %s; the run is %s%s.", out.Approval.ID, out.Approval.State,
					withReason(string(out.Run.State), string(out.Run.Reason)), effects)
			})
		}),
	}
	apiFlags(c)
	c.Flags().StringVar(&q.Digest, "digest", "", "digest of what you saw")
	required(c, "digest")
	reasonFlag(c, &q.Reason, decision != holdpoint.DecisionApprove)
	return c
}

func (p *program) approvalsWithdraw() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:     "withdraw ID",
		Short:   "Take a question back, or what it released and has not begun",
		Example: examples("holdpoint approvals withdraw 01980f2e-7b1a-7c4e-9d55-2f6f0c3b8a11 --reason \"the order was cancelled\""),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				out, err := r.Withdraw(ctx, args[0], reason)
				if err != nil {
					return err
				}
				return p.done(out, "Approval %s is %s; the run is %s.", out.Approval.ID, out.Approval.State, withReason(string(out.Run.State), string(out.Run.Reason)))
			})
		}),
	}
	apiFlags(c)
	reasonFlag(c, &reason, true)
	return c
}
