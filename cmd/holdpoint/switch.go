package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/policy"
)

func (p *program) switchCommand() *cobra.Command {
	return group("switch", "The kill switch: read it, turn scopes on and off",
		examples("holdpoint switch status", "holdpoint switch off global --reason \"strange replies\""),
		p.switchStatus(),
		p.switchSet("on", "Turn scopes on: their approved effects are sent", true),
		p.switchSet("off", "Turn scopes off: nothing that has not begun is sent", false))
}

func (p *program) switchStatus() *cobra.Command {
	c := &cobra.Command{
		Use:     "status",
		Short:   "Say what the switches allow, and what is in flight",
		Example: examples("holdpoint switch status", "holdpoint switch status --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				s, err := r.Switches(ctx)
				if err != nil {
					return err
				}
				return p.answer(s, func(w io.Writer) { saySwitches(w, s) })
			})
		}),
	}
	apiFlags(c)
	return c
}

// saySwitches says first whether anything can be sent at all.
func saySwitches(w io.Writer, s client.Switches) {
	on := map[string]bool{}
	rows := make([][]string, len(s.Switches))
	for i, x := range s.Switches {
		on[x.Scope] = x.On
		rows[i] = []string{x.Scope, onOff(x.On), x.ChangedBy, at(x.ChangedAt)}
	}
	var stops []string
	if !s.Enabled {
		stops = append(stops, "AI_ACTIONS_ENABLED is not true on the server")
	}
	for _, scope := range []string{"global", "tenant"} {
		if !on[scope] {
			stops = append(stops, "the switch "+scope+" is off")
		}
	}
	if len(stops) > 0 {
		fmt.Fprintf(w, "Nothing is sent: %s.\n\n", strings.Join(stops, ", "))
	} else {
		fmt.Fprint(w, "Approved effects are sent, except where a narrower switch is off.\n\n")
	}
	table(w, "SCOPE | STATE | CHANGED BY | CHANGED", rows)
	sayFlight(w, s.InFlight)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// sayFlight lists what has begun: it is finished and recorded, whatever the switch says.
func sayFlight(w io.Writer, flight []holdpoint.Attempt) {
	if len(flight) == 0 {
		fmt.Fprintln(w, "\nNothing is in flight.")
		return
	}
	fmt.Fprintf(w, "\nIn flight, begun before and finished whatever the switch says: %s\n", count(len(flight), "attempt"))
	rows := make([][]string, len(flight))
	for i, a := range flight {
		rows[i] = []string{"  " + a.EffectID, a.RunID, strconv.Itoa(a.Number), at(a.BegunAt), at(a.SendBefore)}
	}
	table(w, "  EFFECT | RUN | NO | BEGUN | SENT BEFORE", rows)
}

// switchSet makes the commands on and off. Every scope is tried, also when one is refused.
func (p *program) switchSet(name, about string, on bool) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   name + " SCOPE…",
		Short: about,
		Long: about + ". Scopes are global, tenant, messages, workflow:NAME,\nconnector:NAME and type:NAME; any scope that is off wins. " +
			"The answer lists what had begun before.",
		Example: examples("holdpoint switch "+name+" global tenant --reason \"first day\"", "holdpoint switch "+name+" workflow:ticket-reply --reason \"new prompt\" --json"),
		Args:    cobra.MinimumNArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, scopes []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				var failed []error
				out := map[string][]client.Flipped{"switches": {}}
				for _, scope := range scopes {
					s, err := r.SetSwitch(ctx, scope, on, reason)
					if err != nil {
						failed = append(failed, err)
						continue
					}
					out["switches"] = append(out["switches"], s)
				}
				if len(out["switches"]) == 0 {
					return errors.Join(failed...)
				}
				return errors.Join(p.answer(out, func(w io.Writer) {
					names := r.scopes(ctx)
					for _, s := range out["switches"] {
						fmt.Fprintf(w, "The switch %s is %s.\n", s.Scope, onOff(s.On))
						if names != nil && !names[s.Scope] {
							fmt.Fprintf(w, "Look at the name again: nothing in the active policy is %s, so it concerns nothing now.\n", s.Scope)
						}
					}
					sayFlight(w, out["switches"][len(out["switches"])-1].InFlight)
				}), errors.Join(failed...))
			})
		}),
	}
	apiFlags(c)
	reasonFlag(c, &reason, true)
	return c
}

// scopes gives the switches that concern something in the active policy, or nil if this token may not read the policy.
func (r *remote) scopes(ctx context.Context) map[string]bool {
	stored, err := r.Policy(ctx, "active")
	if err != nil {
		return nil
	}
	files := map[string][]byte{}
	for name, body := range stored.Files {
		files[name] = []byte(body)
	}
	active, _ := policy.Parse([]byte(stored.Document), files, policy.Options{})
	if active == nil {
		return nil
	}
	names := map[string]bool{"global": true, "tenant": true, "messages": true}
	for connector := range active.Connectors {
		names["connector:"+connector] = true
	}
	for name, w := range active.Workflows {
		names["workflow:"+name] = true
		for _, x := range w.Effects {
			names["type:"+x.Type] = true
		}
	}
	return names
}
