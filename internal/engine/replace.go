package engine

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/store"
)

// ReplaceRequest links a correction, under its own upstream-issued key, to the run that it corrects.
type ReplaceRequest struct {
	Key       string               `json:"key,omitempty"`
	Operation *holdpoint.Operation `json:"operation,omitempty"`
	Payload   json.RawMessage      `json:"payload"`
	Initiator string               `json:"initiator,omitempty"`
	Reason    string               `json:"reason"`
}

// Replacement is the answer: the new run, and whether it was made now.
type Replacement struct {
	Run      holdpoint.Run `json:"run"`
	Replaced holdpoint.Run `json:"replaced"`
	Created  bool          `json:"created"`
}

// chainLimit bounds how far a chain of replacements is followed.
const chainLimit = 100

// Replace makes or links the run that corrects another one (R1.5). A key derived from a key of the same chain is refused
// with derived_key.
func (e *Engine) Replace(ctx context.Context, a holdpoint.Actor, runID string, r ReplaceRequest) (Replacement, error) {
	if err := permit(a, holdpoint.ActionRunReplace); err != nil {
		return Replacement{}, err
	}
	rec, err := e.store.Record(ctx, a.Tenant, runID)
	if err != nil {
		return Replacement{}, err
	}
	p, err := e.policies.active(ctx, a.Tenant)
	if err != nil {
		return Replacement{}, err
	}
	w, err := p.workflow(rec.Run.Workflow)
	if err != nil {
		return Replacement{}, err
	}
	key, err := identity(r.Key, r.Operation)
	if err != nil {
		return Replacement{}, err
	}
	if err := e.refuseDerived(ctx, rec.Run, key, r.Operation); err != nil {
		return Replacement{}, err
	}
	if len(r.Payload) == 0 {
		return Replacement{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send the corrected event as payload")
	}
	old, err := e.openBox(a.Tenant, runID, rec.RunKey)
	if err != nil {
		return Replacement{}, err
	}
	reason, err := reasonText(old, "replace-reason", r.Reason)
	if err != nil {
		return Replacement{}, err
	}
	initiator, err := initiatorOf(w, r.Payload, r.Initiator)
	if err != nil {
		return Replacement{}, err
	}
	keys, err := e.keys.of(ctx, a.Tenant)
	if err != nil {
		return Replacement{}, err
	}
	c := store.Claim{RunID: newID(), Tenant: a.Tenant, Scope: w.KeyScope, Workflow: w.Name, Key: key, KeyHMAC: keys.index.Index("key", key),
		KeyFlag: payload.WeakLooks(key), Operation: r.Operation, Ignore: w.Ignore, FingerprintRule: payload.RuleHash(w.Ignore),
		AttemptLimit: w.Retry.RunAttempts, Budget: w.Retry.RunBudget, StealCap: w.Lease.StealCap, PolicyHash: p.Hash, Who: who(a)}
	if c.Fingerprint, err = payload.Fingerprint(r.Payload, w.Ignore, e.limits); err != nil {
		return Replacement{}, err
	}
	b, wrapped, err := e.newBox(a.Tenant, c.RunID)
	if err != nil {
		return Replacement{}, err
	}
	c.RunKey, c.Payload, c.Initiator = wrapped, b.seal("payload", r.Payload), b.sealText("initiator", initiator)
	link := store.Replacement{Tenant: a.Tenant, OldRunID: runID, New: c, ReasonText: reason, Who: who(a)}
	before, after, created, err := e.store.ReplaceRun(ctx, link)
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeMismatch}) && after.FingerprintRule != c.FingerprintRule {
		// The key's run was fingerprinted under another rule: ask again under its own, before it is called a mismatch.
		if link.New.Fingerprint, err = payload.Fingerprint(r.Payload, after.Ignore, e.limits); err != nil {
			return Replacement{}, err
		}
		link.New.FingerprintRule, link.New.Ignore = after.FingerprintRule, after.Ignore
		before, after, created, err = e.store.ReplaceRun(ctx, link)
	}
	return Replacement{Run: after, Replaced: before, Created: created}, err
}

// refuseDerived compares a proposed key with every key of the chain that run belongs to.
func (e *Engine) refuseDerived(ctx context.Context, run holdpoint.Run, key string, op *holdpoint.Operation) error {
	chain := []payload.Identity{identityOf(run)}
	for id, n := run.Replaces, 0; id != "" && n < chainLimit; n++ {
		rec, err := e.store.Content(ctx, run.Tenant, id)
		if err != nil {
			return err
		}
		chain = append(chain, identityOf(rec.Run))
		id = rec.Run.Replaces
	}
	proposed := payload.Identity{Key: key, Operation: (*payload.Operation)(op)}
	if why, derived := payload.DerivedKey(chain, proposed); derived {
		return holdpoint.Errorf(holdpoint.CodeDerivedKey, "%s", why)
	}
	return nil
}

func identityOf(r holdpoint.Run) payload.Identity {
	return payload.Identity{Key: r.Key, Operation: (*payload.Operation)(r.Operation)}
}

// CancelRun ends a run that waits for another attempt, for a person or for its effects.
func (e *Engine) CancelRun(ctx context.Context, a holdpoint.Actor, runID, reason string) (holdpoint.Run, error) {
	if err := permit(a, holdpoint.ActionRunCancel); err != nil {
		return holdpoint.Run{}, err
	}
	b, err := e.boxOf(ctx, a.Tenant, runID)
	if err != nil {
		return holdpoint.Run{}, err
	}
	text, err := reasonText(b, "cancel-reason", reason)
	if err != nil {
		return holdpoint.Run{}, err
	}
	return e.store.CancelRun(ctx, a.Tenant, runID, text, who(a))
}
