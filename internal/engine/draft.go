package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// DraftRequest submits a model's output. Output is the JSON value, or a JSON string with the raw text of the model.
type DraftRequest struct {
	Work
	Output    json.RawMessage `json:"output"`
	Model     holdpoint.Model `json:"model,omitzero"`
	SourceURL string          `json:"source_url,omitempty"`
}

// DraftAnswer says what became of a draft: held (Approval), repair (Errors, RepairsLeft, RepairPrompt) or failed (Errors).
type DraftAnswer struct {
	Outcome      string          `json:"outcome"`
	Run          holdpoint.Run   `json:"run"`
	Approval     *ApprovalBrief  `json:"approval,omitempty"`
	Errors       []payload.Fault `json:"errors,omitempty"`
	RepairsLeft  *int            `json:"repairs_left,omitempty"`
	RepairPrompt string          `json:"repair_prompt,omitempty"`
}

// ApprovalBrief is an approval with the page that decides it.
type ApprovalBrief struct {
	holdpoint.Approval
	PageURL string `json:"page_url"`
}

func (e *Engine) brief(a holdpoint.Approval) *ApprovalBrief {
	return &ApprovalBrief{a, e.PublicURL("/console/approvals/" + a.ID)}
}

// SubmitDraft checks an output against the workflow's contract, renders the effects that policy derives from it, and puts
// the question to people. An output that fails its contract gets a bounded number of repairs; a refusal, a draft that
// cannot be rendered and a draft without any effect go to a person as a review, which cannot be approved.
func (e *Engine) SubmitDraft(ctx context.Context, a holdpoint.Actor, runID string, r DraftRequest) (DraftAnswer, error) {
	f, err := e.fence(a, runID, r.Work, "draft", r)
	if err != nil {
		return DraftAnswer{}, err
	}
	if len(r.Output) == 0 {
		return DraftAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send the model's output: a JSON object, or a string with its raw text")
	}
	if err := checkSource(r.SourceURL); err != nil {
		return DraftAnswer{}, err
	}
	if err := checkModel(r.Model); err != nil {
		return DraftAnswer{}, err
	}
	rec, p, w, err := e.runPolicy(ctx, a.Tenant, runID)
	if err != nil {
		return DraftAnswer{}, err
	}
	verdict := p.contracts[w.Name].Judge(r.Output, r.Model.FinishReason, e.limits)
	if verdict.Class != holdpoint.ClassNone && verdict.Class != holdpoint.ClassRefusal {
		return e.rejectDraft(ctx, a, f, rec, p, w, r, verdict)
	}
	b, err := e.openBox(a.Tenant, runID, rec.RunKey)
	if err != nil {
		return DraftAnswer{}, err
	}
	d, err := e.plan(ctx, a, rec, p, w, b, r, verdict)
	if err != nil {
		return DraftAnswer{}, err
	}
	d.Fence = f
	run, approval, err := e.store.HoldDraft(ctx, d)
	if err != nil {
		return DraftAnswer{}, err
	}
	return DraftAnswer{Outcome: "held", Run: run, Approval: e.brief(approval)}, nil
}

// rejectDraft counts a repair, or ends the run when none is left.
func (e *Engine) rejectDraft(ctx context.Context, a holdpoint.Actor, f store.Fence, rec store.Record, p *loaded, w *policy.Workflow, r DraftRequest, v payload.Verdict) (DraftAnswer, error) {
	repairs := rec.Run.Repairs
	if rec.Run.LastCall == f.Call {
		repairs-- // the identical call again: it was counted already
	}
	rejection := store.DraftRejection{Class: v.Class, Model: r.Model, Who: who(a), Reason: holdpoint.ReasonInvalidOutput,
		Terminal: repairs >= w.Repairs || v.Class == holdpoint.ClassContextTooLong}
	for _, fault := range v.Faults {
		rejection.Codes = append(rejection.Codes, p.contracts[w.Name].Evidence(fault))
	}
	if rejection.Terminal {
		var err error
		if rejection.Messages, err = e.alertMessages(ctx, rec.Run, w, "run.failed"); err != nil {
			return DraftAnswer{}, err
		}
	}
	run, err := e.store.RejectDraft(ctx, f, rejection)
	if err != nil {
		return DraftAnswer{}, err
	}
	if run.State != holdpoint.RunProcessing {
		return DraftAnswer{Outcome: "failed", Run: run, Errors: v.Faults}, nil
	}
	left := max(0, w.Repairs-run.Repairs)
	return DraftAnswer{Outcome: "repair", Run: run, Errors: v.Faults, RepairsLeft: &left, RepairPrompt: payload.RepairPrompt(v.Faults, w.ContractFile)}, nil
}

// plan makes the transaction's content: draft, rendered effects, approval, challenges and messages.
func (e *Engine) plan(ctx context.Context, a holdpoint.Actor, rec store.Record, p *loaded, w *policy.Workflow, b box, r DraftRequest, v payload.Verdict) (store.Draft, error) {
	run := rec.Run
	revision := run.Revision + 1
	d := store.Draft{ApproveBy: w.Gate.ApproveBy, Who: who(a), SourceURL: b.sealText(fmt.Sprintf("source:%d", revision), r.SourceURL)}
	output := v.Draft
	kind, why := "draft", "gate"
	var rendered []policy.Rendered
	if v.Class == holdpoint.ClassRefusal {
		output, kind, why = r.Output, "review", "refusal"
	} else {
		event, err := b.open("payload", rec.Payload)
		if err != nil {
			return d, err
		}
		rendered, err = w.Render(p.Policy, policy.Input{Event: event, Draft: v.Draft,
			Run: policy.RunInfo{ID: run.ID, Key: run.Key, Workflow: run.Workflow, Tenant: run.Tenant}})
		switch {
		case errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeRender}):
			e.log.WarnContext(ctx, "effects not rendered", "run", run.ID, "workflow", run.Workflow, "error", err) // names expressions, never values
			rendered, kind, why = nil, "review", "soft_failure"
		case err != nil:
			return d, err
		case len(rendered) == 0:
			kind, why = "review", "no_effect"
		}
	}
	d.Draft = holdpoint.Draft{RunID: run.ID, Revision: revision, OutputHash: payload.Hash(output), Model: r.Model, PolicyHash: run.PolicyHash}
	d.Output = b.seal(fmt.Sprintf("draft:%d", revision), output)
	digest := payload.DigestInput{Tenant: run.Tenant, RunID: run.ID, Revision: revision, PolicyHash: run.PolicyHash}
	keys, err := e.keys.of(ctx, run.Tenant)
	if err != nil {
		return d, err
	}
	for _, x := range rendered {
		planned, err := e.planEffect(keys, p, run, revision, b, x)
		if err != nil {
			return d, err
		}
		d.Effects = append(d.Effects, planned)
		digest.Effects = append(digest.Effects, payload.DigestEffect{Slot: x.Slot, Type: x.Type, Connector: x.Connector,
			ConnectorVersion: x.ConnectorVersion, Target: x.Target, PayloadHash: planned.PayloadHash, Order: x.Order, After: x.After})
	}
	d.Approval = holdpoint.Approval{ID: newID(), Tenant: run.Tenant, RunID: run.ID, Workflow: run.Workflow, Revision: revision,
		Digest: payload.Digest(digest), PolicyHash: run.PolicyHash, State: holdpoint.ApprovalPending, Kind: kind, Why: why,
		Roles: w.Gate.Roles, Quorum: 1, Assurance: w.Gate.Assurance, ExecuteWithin: holdpoint.Duration(w.Gate.ExecuteBy),
		Allowed: []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack}}
	if kind == "review" {
		d.Approval.Allowed = d.Approval.Allowed[1:]
	}
	d.Data = map[string]any{"revision": revision, "output_hash": d.Draft.OutputHash, "digest": d.Approval.Digest, "effects": len(rendered),
		"kind": kind, "why": why, "model": r.Model.Name, "model_revision": r.Model.Revision, "endpoint_class": r.Model.EndpointClass,
		"finish_reason": r.Model.FinishReason, "prompt_version": r.Model.PromptVersion, "policy_version": run.PolicyHash}
	items := sentenceItems(rendered)
	return d, e.ask(ctx, &d, p, w, run, rec, b, items)
}

// planEffect seals one rendered effect and derives the key and reference by which the provider will know it. They are the
// same for every attempt, after a restore and after a redelivery (R4.1).
func (e *Engine) planEffect(keys keyPair, p *loaded, run holdpoint.Run, revision int, b box, x policy.Rendered) (store.PlannedEffect, error) {
	c := p.Connectors[x.Connector]
	limit := 0
	if c.Idempotency != nil {
		limit = c.Idempotency.MaxLength
	}
	spec := holdpoint.EffectSpec{ID: newID(), RunID: run.ID, Workflow: run.Workflow, Revision: revision, Order: x.Order, Slot: x.Slot, Type: x.Type,
		Connector: x.Connector, ConnectorVersion: x.ConnectorVersion, Provider: c.Target, Consequence: x.Consequence,
		TargetIndex: keys.index.Index("target", x.Target), PayloadHash: payload.Hash(x.Payload),
		ProviderKey: keys.effect.ProviderKey(run.Tenant, run.Workflow, run.Key, x.Slot, limit),
		Reference:   keys.effect.ProviderKey(run.Tenant, run.Workflow, run.Key, x.Slot, 0), After: x.After}
	if x.Reversible != nil {
		spec.Reversible = &holdpoint.Reversible{By: x.Reversible.By, Within: holdpoint.Duration(x.Reversible.Within)}
	}
	return store.PlannedEffect{EffectSpec: spec, Target: b.seal("target:"+spec.ID, []byte(x.Target)), Payload: b.seal("effect:"+spec.ID, x.Payload)}, nil
}

// checkSource refuses a source link that is not an absolute web address.
func checkSource(link string) error {
	if link == "" {
		return nil
	}
	if len(link) > 2048 || !(strings.HasPrefix(link, "https://") || strings.HasPrefix(link, "http://")) {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "source_url must be an absolute http or https address of at most 2048 bytes")
	}
	return nil
}

// checkModel bounds what is said about the model: it is evidence, which has no room for content.
func checkModel(m holdpoint.Model) error {
	for name, v := range map[string]string{"endpoint_class": m.EndpointClass, "name": m.Name, "revision": m.Revision,
		"finish_reason": m.FinishReason, "prompt_version": m.PromptVersion} {
		if len(v) > 255 {
			return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "model.%s is longer than 255 bytes; shorten it", name)
		}
	}
	return nil
}

// holders lists the enabled people who hold a role, by policy or by grant.
func holders(p *loaded, people []holdpoint.Person, role string) []holdpoint.Person {
	var out []holdpoint.Person
	for _, x := range people {
		if !x.Disabled && slices.Contains(rolesOf(p, x), role) {
			out = append(out, x)
		}
	}
	return out
}

// rolesOf gives a person's roles: the union of what policy and grants say (R6.6). p may be nil.
func rolesOf(p *loaded, x holdpoint.Person) []string {
	roles := slices.Clone(x.GrantedRoles)
	if p != nil {
		for name, r := range p.Roles {
			if slices.Contains(r.Users, x.Email) && !slices.Contains(roles, name) {
				roles = append(roles, name)
			}
		}
	}
	slices.Sort(roles)
	return roles
}
