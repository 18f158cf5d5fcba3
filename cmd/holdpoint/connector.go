package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint/client"
)

func (p *program) connectorCommand() *cobra.Command {
	return group("connector", "See connectors and their holds, and release them",
		examples("holdpoint connector list", "holdpoint connector release helpdesk"),
		p.connectorList(), p.connectorRelease())
}

func (p *program) connectorList() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the connectors of the active policy as they stand",
		Example: examples("holdpoint connector list", "holdpoint connector list --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				all, err := r.Connectors(ctx)
				if err != nil {
					return err
				}
				return p.answer(map[string]any{"connectors": list(all)}, func(w io.Writer) {
					rows := make([][]string, len(all))
					for i, c := range all {
						rows[i] = []string{c.Name, c.Kind, c.Provider, yes(c.HasLookup), yes(c.Proved), connectorState(c), short(c.Version)}
					}
					table(w, "CONNECTOR | KIND | PROVIDER | LOOK-UP | PROVED | STATE | VERSION", rows)
				})
			})
		}),
	}
	apiFlags(c)
	return c
}

// connectorState says what stops a connector.
func connectorState(c client.Connector) string {
	var stops []string
	for _, h := range c.Holds {
		text := "held: " + string(h.Hold)
		if h.Type != "" {
			text += " for " + h.Type
		}
		stops = append(stops, text)
	}
	if len(c.MissingSecrets) > 0 {
		stops = append(stops, "lacks "+strings.Join(c.MissingSecrets, ", "))
	}
	if len(stops) == 0 {
		return "ready"
	}
	return strings.Join(stops, "; ")
}

func (p *program) connectorRelease() *cobra.Command {
	c := &cobra.Command{
		Use:     "release NAME",
		Short:   "Lift a connector's holds after mending what caused them",
		Example: examples("holdpoint connector release helpdesk"),
		Args:    cobra.ExactArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				released, err := r.ReleaseConnector(ctx, args[0])
				if err != nil {
					return err
				}
				note := ""
				if released == 0 {
					note = " What was approved for another version of it stays held; holdpoint effects list --state pending shows what waits."
				}
				return p.done(map[string]any{"connector": args[0], "released": released}, "Connector %s is released; %s may go on.%s", args[0], count(released, "effect"), note)
			})
		}),
	}
	apiFlags(c)
	return c
}
