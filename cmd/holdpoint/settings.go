package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// settingsFile is the file that settings come from when neither flag nor environment says otherwise.
const settingsFile = "holdpoint.env"

// settings are the instance's own; the policy file holds none of them.
type settings struct {
	DB            string   `env:"HOLDPOINT_DB" envDefault:"sqlite:holdpoint.db"`
	DBDirect      string   `env:"HOLDPOINT_DB_DIRECT"`
	Listen        string   `env:"HOLDPOINT_LISTEN" envDefault:"127.0.0.1:8470"`
	PublicURL     string   `env:"HOLDPOINT_PUBLIC_URL"` // default: http:// and Listen
	SecretKeyFile string   `env:"HOLDPOINT_SECRET_KEY_FILE" envDefault:"holdpoint.key"`
	Config        string   `env:"HOLDPOINT_CONFIG" envDefault:"holdpoint.yaml"`
	EgressAllow   []string `env:"HOLDPOINT_EGRESS_ALLOW"`
	URL           string   `env:"HOLDPOINT_URL"` // default: PublicURL
	Token         string   `env:"HOLDPOINT_TOKEN"`
	Actions       string   `env:"AI_ACTIONS_ENABLED"`

	egress []netip.Prefix
}

// actionsEnabled reports whether AI_ACTIONS_ENABLED is exactly true. Fail closed: any other spelling sends nothing.
func (s settings) actionsEnabled() bool { return s.Actions == "true" }

// settingNames lists the settings in the order of the struct.
func settingNames() []string {
	fields, err := env.GetFieldParams(&settings{})
	if err != nil {
		return nil
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Key
	}
	return names
}

// setting adds a flag that overrides one setting.
func setting(f *pflag.FlagSet, flag, name, usage string) {
	f.String(flag, "", usage+" ("+name+")")
	_ = f.SetAnnotation(flag, "setting", []string{name})
}

// storeFlags adds the flags of commands that open the store.
func storeFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	setting(f, "db", "HOLDPOINT_DB", "database: sqlite:PATH or postgres://…")
	setting(f, "db-direct", "HOLDPOINT_DB_DIRECT", "PostgreSQL connection that passes no transaction pooler")
	setting(f, "secret-key-file", "HOLDPOINT_SECRET_KEY_FILE", "file with the instance's secret key")
}

// apiFlags adds the flags of commands that call the HTTP API. The token has no flag of its own: a command line is visible
// to everybody on the machine.
func apiFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	setting(f, "url", "HOLDPOINT_URL", "address of the server")
	f.String("token-file", "", "file with the token that HOLDPOINT_TOKEN would hold")
}

// configFlag adds the flag that names the policy file.
func configFlag(cmd *cobra.Command) {
	setting(cmd.Flags(), "config", "HOLDPOINT_CONFIG", "policy file")
}

// settings reads what holds for this command: flags, then environment, then the settings file.
func (p *program) settings(cmd *cobra.Command) (settings, error) {
	var s settings
	values, err := readSettingsFile(settingsFile)
	if err != nil {
		return s, err
	}
	for _, e := range p.environ {
		if name, value, _ := strings.Cut(e, "="); value != "" {
			values[name] = value
		}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		for _, name := range f.Annotations["setting"] {
			values[name] = f.Value.String()
		}
	})
	if err := env.ParseWithOptions(&s, env.Options{Environment: values}); err != nil {
		return s, usagef("correct the settings: %v", err)
	}
	if f := cmd.Flags().Lookup("token-file"); f != nil && f.Changed {
		token, err := os.ReadFile(f.Value.String())
		if err != nil {
			return s, usagef("the token file %s cannot be read; name one that can", f.Value)
		}
		s.Token = strings.TrimSpace(string(token))
	}
	for _, text := range s.EgressAllow {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return s, usagef("HOLDPOINT_EGRESS_ALLOW lists address ranges such as 127.0.0.0/8, separated by commas; %q is none", text)
		}
		s.egress = append(s.egress, prefix)
	}
	if _, port, err := net.SplitHostPort(s.Listen); err != nil || port == "" {
		return s, usagef("HOLDPOINT_LISTEN is an address with a port such as 127.0.0.1:8470; %q is none", s.Listen)
	}
	if s.PublicURL == "" {
		s.PublicURL = "http://" + s.Listen
	}
	if s.URL == "" {
		s.URL = s.PublicURL
	}
	return s, nil
}

// readSettingsFile reads NAME=VALUE lines; a file that is not there holds no settings. Names that are no setting are
// refused, so that a misspelt one cannot be overlooked.
func readSettingsFile(path string) (map[string]string, error) {
	values := map[string]string{}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return values, nil
	}
	if err != nil {
		return nil, usagef("%s cannot be read; correct its permissions or remove it", path)
	}
	known := map[string]bool{}
	for _, name := range settingNames() {
		known[name] = true
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !ok:
			return nil, usagef("%s:%d: write NAME=VALUE", path, n)
		case !known[name]:
			return nil, usagef("%s:%d: %q is no setting; the settings are %s", path, n, name, strings.Join(settingNames(), ", "))
		}
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		if value != "" {
			values[name] = value
		}
	}
	if err := lines.Err(); err != nil {
		return nil, usagef("%s cannot be read: keep its lines short", path)
	}
	return values, nil
}

// masterKeyBytes is the length of the secret key.
const masterKeyBytes = 32

// readMasterKey reads the secret key: 32 bytes in base64.
func readMasterKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("there is no secret key at %s; restore the one that the store was made with, say with HOLDPOINT_SECRET_KEY_FILE where it is, or begin with holdpoint init", path)
	}
	if err != nil {
		return nil, usagef("the secret key %s cannot be read; run as the user who owns it", path)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != masterKeyBytes {
		return nil, usagef("the secret key %s does not hold 32 bytes in base64; restore the file that this store was made with", path)
	}
	return key, nil
}
