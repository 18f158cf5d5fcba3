package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
)

// settingsOf reads the settings in a directory with a settings file, an environment and a command line.
func settingsOf(t *testing.T, file string, environ, args []string) (settings, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if file != "" {
		require.NoError(t, os.WriteFile(settingsFile, []byte(file), 0o600))
	}
	p := &program{environ: environ}
	c := &cobra.Command{Use: "x"}
	storeFlags(c)
	apiFlags(c)
	configFlag(c)
	require.NoError(t, c.ParseFlags(args))
	return p.settings(c)
}

func TestSettingsComeFromFlagsThenEnvironmentThenFile(t *testing.T) {
	file := "# comment\nHOLDPOINT_DB=sqlite:file.db\nexport HOLDPOINT_CONFIG=\"file.yaml\"\nHOLDPOINT_LISTEN='127.0.0.1:1'\n"
	s, err := settingsOf(t, file, []string{"HOLDPOINT_DB=sqlite:env.db", "HOLDPOINT_CONFIG=env.yaml", "HOLDPOINT_LISTEN="}, []string{"--config", "flag.yaml"})
	require.NoError(t, err)
	require.Equal(t, "sqlite:env.db", s.DB)
	require.Equal(t, "flag.yaml", s.Config)
	require.Equal(t, "127.0.0.1:1", s.Listen, "an empty variable says nothing")
	require.Equal(t, "http://127.0.0.1:1", s.PublicURL)
	require.Equal(t, "http://127.0.0.1:1", s.URL)
}

func TestSettingsDefaults(t *testing.T) {
	s, err := settingsOf(t, "", nil, nil)
	require.NoError(t, err)
	require.Equal(t, settings{DB: "sqlite:holdpoint.db", Listen: "127.0.0.1:8470", PublicURL: "http://127.0.0.1:8470", SecretKeyFile: "holdpoint.key",
		Config: "holdpoint.yaml", URL: "http://127.0.0.1:8470"}, s)
	require.False(t, s.actionsEnabled())
}

func TestActionsNeedExactlyTrue(t *testing.T) {
	for _, text := range []string{"True", "TRUE", "1", "yes", " true", "true "} {
		s, err := settingsOf(t, "", []string{"AI_ACTIONS_ENABLED=" + text}, nil)
		require.NoError(t, err)
		require.False(t, s.actionsEnabled(), text)
	}
	s, err := settingsOf(t, "", []string{"AI_ACTIONS_ENABLED=true"}, nil)
	require.NoError(t, err)
	require.True(t, s.actionsEnabled())
}

func TestSettingsThatAreWrongAreUsageErrors(t *testing.T) {
	for name, c := range map[string]struct {
		file, want string
		environ    []string
		args       []string
	}{
		"unknown in file":    {file: "HOLDPOINT_DBB=x\n", want: `holdpoint.env:1: "HOLDPOINT_DBB" is no setting`},
		"no value in file":   {file: "\nHOLDPOINT_DB\n", want: "holdpoint.env:2: write NAME=VALUE"},
		"egress":             {environ: []string{"HOLDPOINT_EGRESS_ALLOW=127.0.0.0/8,home"}, want: `"home" is none`},
		"missing token file": {args: []string{"--token-file", "nowhere"}, want: "cannot be read"},
	} {
		_, err := settingsOf(t, c.file, c.environ, c.args)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorAs(t, err, &usageError{}, name)
	}
}

func TestEgressAllowIsAListOfRanges(t *testing.T) {
	s, err := settingsOf(t, "", []string{"HOLDPOINT_EGRESS_ALLOW=127.0.0.0/8, ::1/128"}, nil)
	require.NoError(t, err)
	require.Len(t, s.egress, 2)
	require.Equal(t, "::1/128", s.egress[1].String())
}

func TestMasterKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for name, text := range map[string]string{"empty": "", "not base64": "!!!", "short": "aG9sZHBvaW50"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readMasterKey(path)
		require.ErrorContains(t, err, "32 bytes", name)
		if text != "" {
			require.NotContains(t, err.Error(), text, name)
		}
	}
	require.NoError(t, os.WriteFile(path, []byte("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"), 0o600))
	key, err := readMasterKey(path)
	require.NoError(t, err)
	require.Len(t, key, 32)
}

// TestSamplePasses holds the sample of init against the check: nothing to correct, and one remark that is true of it.
func TestSamplePasses(t *testing.T) {
	document, schema, err := samplePolicy("ana@acme.example")
	require.NoError(t, err)
	parsed, findings := policy.Parse(document, map[string][]byte{sampleSchema: schema}, policy.Options{CheckContract: func(name string, schema []byte) error {
		_, err := payload.CompileContract(name, schema)
		return err
	}})
	require.NotNil(t, parsed, "%v", findings)
	require.Len(t, findings, 1)
	require.Equal(t, "few_people", findings[0].Code)
	require.Equal(t, "default", parsed.Tenant)
	require.Equal(t, []string{"ana@acme.example"}, parsed.Roles["approver"].Users)
	require.NotNil(t, parsed.Connectors["helpdesk"].Lookup)
	names, err := policy.Files(document)
	require.NoError(t, err)
	require.Equal(t, []string{sampleSchema}, names)
}

func TestMatrixLinesSayEveryClass(t *testing.T) {
	lines := matrixLines()
	require.Len(t, lines, len(policy.Matrix))
	require.Equal(t, "1s..5m", lines[0].Backoff)
	for _, l := range lines {
		require.NotEmpty(t, l.Acts, l.Class)
		require.NotEmpty(t, l.Run, l.Class)
	}
}
