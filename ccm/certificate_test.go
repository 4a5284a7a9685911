package ccm

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiserveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/util/cert"
)

// TestAwaitCertificate: a missing certificate of the metrics does not end the process; it is used once it is there.
func TestAwaitCertificate(t *testing.T) {
	dir := t.TempDir()
	files := apiserveroptions.CertKey{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	o, err := Options()
	if err != nil {
		t.Fatal(err)
	}
	settings := DefaultSettings()
	if settings.AwaitCertificate(o); settings.awaited != (apiserveroptions.CertKey{}) {
		t.Errorf("without flags it waits for %v", settings.awaited)
	}
	o.SecureServing.ServerCert.CertKey = files
	settings.AwaitCertificate(o)
	if settings.awaited != files || o.SecureServing.ServerCert.CertKey != (apiserveroptions.CertKey{}) {
		t.Fatalf("it waits for %v and serves %v", settings.awaited, o.SecureServing.ServerCert.CertKey)
	}
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := &awaitedCertificate{CertKeyContentProvider: o.SecureServing.ServerCert.GeneratedCert, files: files, log: slog.New(slog.NewTextHandler(&log, nil))}
	own, ownKey := o.SecureServing.ServerCert.GeneratedCert.CurrentCertKeyContent()
	want := func(when string, certificate, key []byte) {
		t.Helper()
		if haveCert, haveKey := c.CurrentCertKeyContent(); !bytes.Equal(haveCert, certificate) || !bytes.Equal(haveKey, key) {
			t.Errorf("%s: another certificate", when)
		}
	}
	want("without files", own, ownKey)
	given, givenKey, err := cert.GenerateSelfSignedCertKey("given", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(files.CertFile, given, 0o600), os.WriteFile(files.KeyFile, ownKey, 0o600)); err != nil {
		t.Fatal(err)
	}
	want("with the key of another", own, ownKey)
	if err := os.WriteFile(files.KeyFile, givenKey, 0o600); err != nil {
		t.Fatal(err)
	}
	want("with both files", given, givenKey)
	want("with both files, again", given, givenKey)
	if n := strings.Count(log.String(), "certificate of the metrics found"); n != 1 {
		t.Errorf("%d lines of the log:\n%s", n, &log)
	}
	again := DefaultSettings()
	o.SecureServing.ServerCert.CertKey = files
	if again.AwaitCertificate(o); again.awaited != (apiserveroptions.CertKey{}) || o.SecureServing.ServerCert.CertKey != files {
		t.Errorf("with both files it waits for %v", again.awaited)
	}
}
