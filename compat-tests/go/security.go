package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
)

// trusting returns the TLS configuration, which trusts the CA certificates in the PEM file
// COMPAT_TRUSTED. It returns nil if clients do not use TLS.
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

// token returns the current OAUTHBEARER token, from the file in the last part of COMPAT_LOGIN.
func token() (string, error) {
	_, _, path := credentials()
	text, err := os.ReadFile(path)
	return string(text), err
}

// credentials returns the SASL mechanism, user and password of COMPAT_LOGIN. They are empty without SASL.
func credentials() (mechanism, user, password string) {
	parts := strings.Split(os.Getenv("COMPAT_LOGIN"), ":")
	if len(parts) != 3 {
		return "", "", ""
	}
	return parts[0], parts[1], parts[2]
}
