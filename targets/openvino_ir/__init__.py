"""The OpenVINO target's parts: conversion, limits of the CPU plugin, runner."""
