package ccm

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	apiserveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/cloud-provider/options"
)

// AwaitCertificate lets the process start while --tls-cert-file or --tls-private-key-file does not exist, as before the
// Secret of the chart value metrics.tlsSecret: metrics have a certificate that clients cannot verify until it does.
func (s *Settings) AwaitCertificate(o *options.CloudControllerManagerOptions) {
	files := &o.SecureServing.ServerCert.CertKey
	for _, file := range []string{files.CertFile, files.KeyFile} {
		if _, err := os.Stat(file); file != "" && errors.Is(err, fs.ErrNotExist) {
			s.awaited, *files = *files, apiserveroptions.CertKey{}
			return
		}
	}
}

// awaitedCertificate is that of two files, and another one while they are no certificate. The API server's library asks
// for it once a minute.
type awaitedCertificate struct {
	dynamiccertificates.CertKeyContentProvider
	files apiserveroptions.CertKey
	log   *slog.Logger
	found bool
}

// CurrentCertKeyContent is called by one goroutine.
func (c *awaitedCertificate) CurrentCertKeyContent() (cert, key []byte) {
	cert, certErr := os.ReadFile(c.files.CertFile)
	key, keyErr := os.ReadFile(c.files.KeyFile)
	_, err := tls.X509KeyPair(cert, key)
	if err = errors.Join(certErr, keyErr, err); err == nil && !c.found {
		c.log.Info("certificate of the metrics found", "file", c.files.CertFile)
	}
	if c.found = err == nil; c.found {
		return cert, key
	}
	return c.CertKeyContentProvider.CurrentCertKeyContent()
}
