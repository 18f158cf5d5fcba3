package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/killpoint"
)

// initialised is what init answers. Key, password and token are shown this once.
type initialised struct {
	Config        string    `json:"config"`
	SecretKeyFile string    `json:"secret_key_file"`
	APIKey        string    `json:"api_key"`
	Admin         initAdmin `json:"admin"`
}

type initAdmin struct {
	Email    string `json:"email"`
	Password string `json:"password"`
	Token    string `json:"token"`
}

// The scopes of what init mints.
var (
	initKeyScopes   = []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead}
	initTokenScopes = []holdpoint.Scope{holdpoint.ScopeDecide, holdpoint.ScopeOperate, holdpoint.ScopeSwitch, holdpoint.ScopeAdmin}
)

func (p *program) initCommand() *cobra.Command {
	var dir, admin string
	c := &cobra.Command{
		Use:   "init",
		Short: "Write a sample policy and a secret key, make the store, a first key and a first person",
		Long: "Writes the sample policy holdpoint.yaml with its schema, the secret key file and the store, activates the sample, and\n" +
			"makes a machine key for workflows and a first person with every reserved role, who also approves what the sample holds.\n" +
			"It overwrites nothing. Key, password and token are shown this once.",
		Example: examples("holdpoint init", "holdpoint init --dir /srv/holdpoint --admin ops@acme.example --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			s, err := p.settings(cmd)
			if err != nil {
				return err
			}
			if dir, err = filepath.Abs(dir); err != nil {
				return err
			}
			answer, err := initialise(ctx, s.in(dir), strings.ToLower(admin))
			if err != nil {
				return err
			}
			return p.answer(answer, func(w io.Writer) { sayInitialised(w, answer) })
		}),
	}
	storeFlags(c)
	configFlag(c)
	c.Flags().StringVar(&dir, "dir", ".", "directory to write into")
	c.Flags().StringVar(&admin, "admin", "admin@localhost", "e-mail address of the first person")
	return c
}

// in gives the settings with relative paths made to stand below dir.
func (s settings) in(dir string) settings {
	below := func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	s.Config, s.SecretKeyFile = below(s.Config), below(s.SecretKeyFile)
	if path, ok := strings.CutPrefix(s.DB, "sqlite:"); ok {
		s.DB = "sqlite:" + below(path)
	}
	return s
}

// initialise writes the files and fills the store. What it has written it takes away again if it fails before a store
// depends on it.
func initialise(ctx context.Context, s settings, admin string) (out initialised, err error) {
	document, schema, err := samplePolicy(admin)
	if err != nil {
		return out, err
	}
	raw := make([]byte, masterKeyBytes)
	_, _ = rand.Read(raw) // crypto/rand ends the program rather than return an error
	files := []newFile{
		{s.Config, document, 0o644},
		{filepath.Join(filepath.Dir(s.Config), sampleSchema), schema, 0o644},
		{s.SecretKeyFile, []byte(base64.StdEncoding.EncodeToString(raw) + "\n"), 0o600},
	}
	for _, f := range files {
		if err := absent(f.path); err != nil {
			return out, err
		}
	}
	if path, ok := strings.CutPrefix(s.DB, "sqlite:"); ok {
		if err := absent(path); err != nil {
			return out, err
		}
	}
	written, err := writeAll(files)
	if err != nil {
		return out, errors.Join(err, removeAll(written))
	}
	killpoint.Reach("init.files_written")
	out, depends, err := fillStore(ctx, s, admin, document, schema)
	if err != nil && !depends {
		err = errors.Join(err, removeAll(append(written, sqliteFiles(s.DB)...)))
	}
	killpoint.Reach("init.before_answer")
	out.Config, out.SecretKeyFile = s.Config, s.SecretKeyFile
	return out, err
}

// fillStore makes the store and everything in it. depends says that a failure has left something in a database that only
// the new secret key opens.
func fillStore(ctx context.Context, s settings, admin string, document, schema []byte) (out initialised, depends bool, err error) {
	o, err := s.appOptions()
	if err != nil {
		return out, false, err
	}
	a, err := withoutLoops(ctx, o)
	if err != nil {
		return out, false, err
	}
	defer func() { err = errors.Join(err, a.Stop(context.WithoutCancel(ctx))) }()
	tenants, err := a.Engine().Tenants(ctx)
	if err != nil {
		return out, false, err
	}
	if len(tenants) > 0 {
		return out, false, holdpoint.Errorf(holdpoint.CodeExists, "the database already holds tenants; name an empty one with HOLDPOINT_DB")
	}
	out, err = fill(ctx, a.Engine(), admin, document, schema)
	return out, !strings.HasPrefix(s.DB, "sqlite:"), err
}

// fill makes the tenant, its first person, the active sample, and the first key and token.
func fill(ctx context.Context, e *engine.Engine, admin string, document, schema []byte) (out initialised, err error) {
	by := engine.Local(engine.DefaultTenant, osUser())
	if err := e.CreateTenant(ctx, by, by.Tenant); err != nil {
		return out, err
	}
	person, err := e.AddPerson(ctx, by, admin, "")
	if err != nil {
		return out, err
	}
	for _, role := range holdpoint.ReservedRoles {
		if err := e.Grant(ctx, by, person.Email, role); err != nil {
			return out, err
		}
	}
	stored, err := e.PutPolicy(ctx, by, engine.PolicyProposal{Document: string(document), Files: map[string]string{sampleSchema: string(schema)}})
	if err != nil {
		return out, err
	}
	if err := e.ActivatePolicy(ctx, by, stored.Hash, ""); err != nil {
		return out, err
	}
	key, err := e.CreateKey(ctx, by, "first workflow", initKeyScopes)
	if err != nil {
		return out, err
	}
	token, err := e.CreateToken(ctx, by, person.Email, "first token", initTokenScopes)
	if err != nil {
		return out, err
	}
	return initialised{APIKey: key.Key, Admin: initAdmin{person.Email, person.Password, token.Key}}, nil
}

// newFile is a file that init writes.
type newFile struct {
	path string
	body []byte
	mode fs.FileMode
}

// absent refuses a path at which something stands.
func absent(path string) error {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return holdpoint.Errorf(holdpoint.CodeExists, "%s exists already and is not overwritten; move it away, or choose another place with --dir", path)
	case !errors.Is(err, fs.ErrNotExist):
		return holdpoint.Errorf(holdpoint.CodeForbidden, "%s cannot be looked at; choose another place with --dir", path).Wrap(err)
	}
	return nil
}

// writeAll writes new files and gives the paths of those that it wrote.
func writeAll(files []newFile) (written []string, err error) {
	for _, f := range files {
		if err := writeNew(f); err != nil {
			return written, holdpoint.Errorf(holdpoint.CodeForbidden, "%s cannot be written; choose a place where you may write with --dir", f.path).Wrap(err)
		}
		written = append(written, f.path)
	}
	return written, nil
}

// writeNew makes one file durable, or fails if something stands there.
func writeNew(f newFile) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	_, err = file.Write(f.body)
	return errors.Join(err, file.Sync(), file.Close())
}

func removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sqliteFiles lists the files of a SQLite store that init has just made.
func sqliteFiles(db string) []string {
	path, ok := strings.CutPrefix(db, "sqlite:")
	if !ok {
		return nil
	}
	return []string{path, path + "-wal", path + "-shm", path + ".lock"}
}

func sayInitialised(w io.Writer, i initialised) {
	pairs(w, "policy", i.Config, "secret key", i.SecretKeyFile, "machine key", i.APIKey, "person", i.Admin.Email,
		"password", i.Admin.Password, "token", i.Admin.Token)
	fmt.Fprint(w, "\nKeep a copy of the secret key: without it nobody can read the store. Key, password and token are not shown again.\n\n"+
		"Next, where the policy is:\n"+
		"  AI_ACTIONS_ENABLED=true HOLDPOINT_EGRESS_ALLOW=127.0.0.0/8 holdpoint serve    # the sample sends to this machine\n"+
		"  HOLDPOINT_TOKEN=… holdpoint switch on global tenant --reason \"first day\"        # until then nothing is sent\n")
}
