package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint/app"
)

func (p *program) serveCommand() *cobra.Command {
	var roles []string
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run API, console, approval pages and dispatcher",
		Long: "Runs the server until it is told to stop (SIGTERM or SIGINT); what has begun is then finished and recorded. Logs are\n" +
			"JSON lines on the diagnostics stream and never hold content. Nothing is sent unless AI_ACTIONS_ENABLED is exactly true and\n" +
			"the switches global and tenant are on.",
		Example: examples("AI_ACTIONS_ENABLED=true holdpoint serve",
			"HOLDPOINT_DB=postgres://holdpoint@db/holdpoint holdpoint serve --roles api --listen 0.0.0.0:8470 --public-url https://holdpoint.acme.example"),
		Args: cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			s, err := p.settings(cmd)
			if err != nil {
				return err
			}
			o, err := s.appOptions()
			if err != nil {
				return err
			}
			o.Roles = roles
			o.Log = slog.New(slog.NewJSONHandler(p.err, nil))
			a, err := app.New(ctx, o)
			if err != nil {
				return err
			}
			if err := a.Engine().CheckMaster(ctx); err != nil {
				return errors.Join(err, stop(ctx, a))
			}
			return p.serve(ctx, a, s)
		}),
	}
	storeFlags(c)
	f := c.Flags()
	setting(f, "listen", "HOLDPOINT_LISTEN", "address to listen on")
	setting(f, "public-url", "HOLDPOINT_PUBLIC_URL", "address under which people reach this instance")
	setting(f, "egress-allow", "HOLDPOINT_EGRESS_ALLOW", "private address ranges that connectors may reach")
	f.StringSliceVar(&roles, "roles", nil, "what this process does: api, dispatch (default both)")
	return c
}

// serving is what serve says when requests are answered.
type serving struct {
	Addr           string `json:"addr"`
	URL            string `json:"url"`
	ActionsEnabled bool   `json:"ai_actions_enabled"`
}

// stopTime bounds how long a graceful stop may take; what has begun by then is settled at the next start.
const stopTime = 30 * time.Second

// serve starts a, says so, and stops it gracefully when ctx ends.
func (p *program) serve(ctx context.Context, a *app.App, s settings) error {
	if err := a.Start(); err != nil {
		return err // nothing has begun, and the process ends
	}
	said := serving{a.Addr(), s.PublicURL, s.actionsEnabled()}
	err := p.answer(said, func(w io.Writer) {
		if said.Addr == "" {
			fmt.Fprintln(w, "Holdpoint sends and looks up; it does not listen.")
		} else {
			fmt.Fprintf(w, "Holdpoint answers on http://%s, for people at %s/console.\n", said.Addr, strings.TrimRight(said.URL, "/"))
		}
		if !said.ActionsEnabled {
			fmt.Fprintln(w, "Nothing is sent: AI_ACTIONS_ENABLED is not true.")
		}
	})
	if err == nil {
		go giveBack(ctx, collections, free)
		select {
		case <-ctx.Done():
		case err = <-a.Err():
		}
	}
	return errors.Join(err, stop(ctx, a))
}

func stop(ctx context.Context, a *app.App) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return a.Stop(ctx)
}
