package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
)

// trusting is how clients speak TLS: it trusts the certificates of the PEM file that COMPAT_TRUSTED
// names. Without one it is nil, and they speak none.
func trusting() *tls.Config {
	path := os.Getenv("COMPAT_TRUSTED")
	if path == "" {
		return nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		panic(path + " has no certificates")
	}
	return &tls.Config{RootCAs: roots}
}

// token is that of who logs in by OAUTHBEARER: what the file has now that COMPAT_LOGIN names last.
func token() (string, error) {
	_, _, path := credentials()
	text, err := os.ReadFile(path)
	return string(text), err
}

// credentials are who logs in: mechanism, user and password of COMPAT_LOGIN; empty for nobody.
func credentials() (mechanism, user, password string) {
	parts := strings.Split(os.Getenv("COMPAT_LOGIN"), ":")
	if len(parts) != 3 {
		return "", "", ""
	}
	return parts[0], parts[1], parts[2]
}
